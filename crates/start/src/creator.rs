//! What a sandbox's creator has of it: the connection to its owner, which ends the sandbox when it ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use micabox_disks::snapshot;
use micabox_error::Error;
use micabox_ground::lock;
use micabox_holders::OwnProcess;
use micabox_image::Config;
use micabox_owner::protocol::{Failure, Frame, Reply, Request};
use micabox_owner::{Client, Lost};
use micabox_state::Record;

/// How long an owner may take to exit once its sandbox is over.
const OWNER_END: Duration = Duration::from_secs(30);

/// How long an owner may take to reply to a request that needs no waiting.
const ANSWER: Duration = Duration::from_secs(30);

/// A sandbox that this process has started. Dropping it ends the sandbox at once.
#[derive(Debug)]
pub struct Creator {
    connection: Mutex<Connection>,
    /// The connection, for poll(2).
    socket: OwnedFd,
    started: Started,
    /// Whether the owner is left to itself when this is dropped.
    is_left: bool,
}

/// A sandbox that was just started.
#[derive(Debug)]
pub struct Started {
    /// The directory of its state.
    pub directory: PathBuf,
    /// Its record as of when it was ready for commands.
    pub record: Record,
    /// Its image's configuration.
    pub config: Config,
    /// The time from the beginning until the machine was started.
    pub planned: Duration,
    /// The signal that asks its first command to end.
    pub stop_signal: i32,
}

/// The connection, and the end that was received on it.
#[derive(Debug)]
struct Connection {
    client: Client,
    /// None once another thread waits for it, and for an owner of a pool.
    process: Option<OwnProcess>,
    ended: Option<Ended>,
}

/// An event of a sandbox.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Whether the guest's writes wait because the host's disk is full.
    Stalled(bool),
    /// The sandbox is over.
    Ended(Ended),
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The exit code of the command with the sandbox's lifetime, if there was one.
    pub code: Option<u8>,
    failure: Option<Failure>,
}

impl Ended {
    /// Returns what went wrong at the end, if anything: the guest was lost, or not everything that
    /// the sandbox keeps could be written.
    pub fn error(&self) -> Option<Error> {
        self.failure.clone().map(Error::from)
    }

    /// Returns why the guest was lost, if it was and the owner said so.
    pub fn lost(self) -> Option<Lost> {
        self.failure?.lost.map(|lost| *lost)
    }
}

impl Creator {
    /// Takes the connection to an owner whose sandbox runs, and its process, if that is this one's child.
    pub(crate) fn new(
        client: Client,
        process: Option<OwnProcess>,
        started: Started,
    ) -> Result<Self, Error> {
        let socket = client.as_fd().try_clone_to_owned();
        let socket = socket.map_err(Error::system("sharing a connection"))?;
        Ok(Self {
            connection: Mutex::new(Connection {
                client,
                process,
                ended: None,
            }),
            socket,
            started,
            is_left: false,
        })
    }

    /// Returns what is known of the sandbox since its start.
    pub fn started(&self) -> &Started {
        &self.started
    }

    /// Saves the machine into a template's directory.
    pub(crate) fn save(&self, directory: &Path) -> Result<(), Error> {
        snapshot::save(
            &self.started.record,
            &self.started.directory,
            directory,
            false,
        )
        .map(drop)
    }

    /// Lets the sandbox continue without this process, until the command that has its
    /// lifetime ends or the sandbox is stopped. A command may end before this: the
    /// sandbox is then over as it would be without this process, which is no error.
    ///
    /// # Errors
    /// [`Error::Lost`] if its guest was lost, and others that [`Ended::error`] has.
    pub fn detach(mut self) -> Result<(), Error> {
        let mut connection = lock(&self.connection);
        // That the owner is gone shows below, after what it has sent.
        let _ = connection.client.request(1, &Request::Detach, &[]);
        let reply = connection.reply(1, Instant::now().checked_add(ANSWER));
        let process = connection.process.take();
        let ended = connection.ended.clone();
        match (reply, ended) {
            (Some(Reply::Detached), _) => {
                drop(connection);
                self.is_left = true;
                if let Some(owner) = process {
                    owner.goes_on();
                }
                Ok(())
            }
            // Its owner has recorded the end, and leaves.
            (_, Some(ended)) => {
                drop(connection);
                self.is_left = true;
                if let Some(owner) = process {
                    owner.ends();
                }
                ended.error().map_or(Ok(()), Err)
            }
            (Some(Reply::Failed(failure)), None) => Err(failure.into()),
            _ => Err(Lost::closed().into()),
        }
    }

    /// Leaves a sandbox that has ended ([`Event::Ended`]) to its owner, which waits until the kernel
    /// has taken the machine apart; [`wait_for_processes`](micabox_holders::own_process::wait_for_processes) waits for
    /// that. The same as dropping it for one that has not ended.
    pub fn leave(mut self) {
        let mut connection = lock(&self.connection);
        let is_over = connection.ended.is_some();
        let owner = is_over.then(|| connection.process.take()).flatten();
        drop(connection);
        self.is_left = is_over;
        if let Some(owner) = owner {
            owner.ends();
        }
    }

    /// Waits until the sandbox is over. None if `deadline` passes first.
    ///
    /// # Errors
    /// [`Error::OwnerGone`].
    pub fn wait_until(&self, deadline: Option<Instant>) -> Result<Option<Ended>, Error> {
        loop {
            match self.event(deadline)? {
                Some(Event::Ended(ended)) => return Ok(Some(ended)),
                Some(Event::Stalled(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// Waits for the sandbox's next event; None if `deadline` passes first. After the end, every
    /// call returns it.
    ///
    /// # Errors
    /// [`Error::OwnerGone`].
    pub fn event(&self, deadline: Option<Instant>) -> Result<Option<Event>, Error> {
        loop {
            {
                let mut connection = lock(&self.connection);
                if let Some(ended) = &connection.ended {
                    return Ok(Some(Event::Ended(ended.clone())));
                }
                match connection.client.try_receive() {
                    Ok(Some(Frame::Message(0, Reply::Stalled { stalled }))) => {
                        return Ok(Some(Event::Stalled(stalled)));
                    }
                    Ok(Some(Frame::Message(0, Reply::Ended { code, failure }))) => {
                        connection.ended = Some(Ended { code, failure });
                        continue;
                    }
                    Ok(Some(_)) => continue,
                    Ok(None) => {}
                    Err(_) => return Err(Error::OwnerGone),
                }
            }
            match micabox_owner::wait(self.socket.as_fd(), deadline) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(_) => return Err(Error::OwnerGone),
            }
        }
    }
}

impl AsFd for Creator {
    /// Returns a descriptor that is readable when [`Creator::event`] may have an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Creator {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        let mut connection = lock(&self.connection);
        // An end by request is recorded. The end of the connection alone would count as the death
        // of this process.
        let _ = connection.client.request(1, &Request::Kill, &[]);
        connection.client.end();
        wait_for_owner(&mut connection);
    }
}

impl Connection {
    /// Receives the reply to the request `number`, and keeps the sandbox's end if that comes before. None when
    /// `deadline` passes first, or the owner is gone.
    fn reply(&mut self, number: u32, deadline: Option<Instant>) -> Option<Reply> {
        loop {
            match self.client.receive(deadline) {
                Ok(Some(Frame::Message(0, Reply::Ended { code, failure }))) => {
                    self.ended = Some(Ended { code, failure });
                }
                Ok(Some(Frame::Message(of, reply))) if of == number => return Some(reply),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

/// Waits until an owner that was requested to end is gone, with everything of its sandbox.
fn wait_for_owner(connection: &mut Connection) {
    let deadline = Instant::now().checked_add(OWNER_END);
    while let Ok(Some(_)) = connection.client.receive(deadline) {}
    if let Some(owner) = connection.process.take() {
        owner.ends();
    }
}
