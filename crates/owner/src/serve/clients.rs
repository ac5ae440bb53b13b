//! The clients that are connected.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::client::{Client, ClientId};
use crate::protocol::Reply;

/// How long clients may take to read their last messages.
const LINGER: Duration = Duration::from_secs(10);

/// The client that created the sandbox.
pub(super) const CREATOR: ClientId = 0;

/// The clients.
#[derive(Debug)]
pub(super) struct Clients {
    connected: BTreeMap<ClientId, Client>,
    next: ClientId,
    /// The sandbox continues without its creator.
    pub(super) is_detached: bool,
}

impl Clients {
    /// Begins with the creator.
    pub(super) fn new(creator: UnixStream) -> io::Result<Self> {
        Ok(Self {
            connected: BTreeMap::from([(CREATOR, Client::new(creator)?)]),
            next: CREATOR + 1,
            is_detached: false,
        })
    }

    /// Adds a client. If no descriptors are left, the connection is closed, and the client may retry.
    pub(super) fn add(&mut self, socket: UnixStream) {
        if let Ok(client) = Client::new(socket) {
            self.connected.insert(self.next, client);
            self.next += 1;
        }
    }

    pub(super) fn get(&self, id: ClientId) -> Option<&Client> {
        self.connected.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.connected.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.connected.iter().map(|(&id, client)| (id, client))
    }

    pub(super) fn remove(&mut self, id: ClientId) {
        self.connected.remove(&id);
    }

    /// Returns whether a client may still send requests, and is not there only for its commands.
    pub(super) fn are_active(&self) -> bool {
        let mut clients = self.connected.values();
        clients.any(|client| !client.has_ended && !client.is_uncounted)
    }

    /// Lets a client count only while it has a command.
    pub(super) fn uncount(&mut self, client: ClientId) {
        if let Some(client) = self.get_mut(client) {
            client.is_uncounted = true;
        }
    }

    /// Sends a client a message, if it is still connected.
    pub(super) fn send(&mut self, client: ClientId, number: u32, reply: &Reply) {
        if let Some(client) = self.get_mut(client) {
            client.reply(number, reply);
        }
    }

    /// As [`Clients::send`], with a file.
    pub(super) fn send_with(
        &mut self,
        client: ClientId,
        number: u32,
        reply: &Reply,
        file: Arc<File>,
    ) {
        if let Some(client) = self.get_mut(client) {
            client.reply_with(number, reply, file);
        }
    }

    /// Notes that a client's number stands for a command that it has started.
    pub(super) fn add_command(&mut self, client: ClientId, number: u32, id: u32) {
        if let Some(client) = self.get_mut(client) {
            client.commands.insert(number, id);
        }
    }

    /// Forgets the client's command with this number.
    pub(super) fn remove_command(&mut self, client: ClientId, number: u32) {
        if let Some(client) = self.get_mut(client) {
            client.commands.remove(&number);
        }
    }

    /// Notes that a client's number stands for a command that it is attached to.
    pub(super) fn add_attached(&mut self, client: ClientId, number: u32, id: u32) {
        if let Some(client) = self.get_mut(client) {
            client.attached.insert(number, id);
        }
    }

    /// Forgets the command with this number that the client is attached to.
    pub(super) fn remove_attached(&mut self, client: ClientId, number: u32) {
        if let Some(client) = self.get_mut(client) {
            client.attached.remove(&number);
        }
    }

    /// Returns the command that a client has started with this number.
    pub(super) fn started_by(&self, client: ClientId, number: u32) -> Option<u32> {
        self.get(client)?.commands.get(&number).copied()
    }

    /// Returns the command that a client is attached to with this number.
    pub(super) fn attached_by(&self, client: ClientId, number: u32) -> Option<u32> {
        self.get(client)?.attached.get(&number).copied()
    }

    /// Returns whether the client is attached to a command with this number.
    pub(super) fn is_attached(&self, client: ClientId, number: u32) -> bool {
        self.attached_by(client, number).is_some()
    }

    /// Returns the command that a client's number stands for, started by it or attached to.
    pub(super) fn command_of(&self, client: ClientId, number: u32) -> Option<u32> {
        let started = self.started_by(client, number);
        started.or_else(|| self.attached_by(client, number))
    }

    /// Sends the rest of the messages, for at most [`LINGER`].
    pub(super) fn linger(&mut self) {
        let deadline = Instant::now() + LINGER;
        loop {
            self.connected.retain(|_, client| client.flush().is_ok());
            let left = deadline.saturating_duration_since(Instant::now());
            let unsent = self.connected.values().filter(|client| client.has_unsent());
            let fds: Vec<_> = unsent.map(AsFd::as_fd).collect();
            if fds.is_empty() || left.is_zero() {
                return;
            }
            let fds = fds.into_iter();
            let mut fds: Vec<_> = fds
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT))
                .collect();
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
    }
}
