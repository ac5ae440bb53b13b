//! A turn of the event loop: waits until a descriptor is ready or a deadline has passed, and handles both.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use micabox_wire::OutputStream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Owner;
use super::client::ClientId;
use super::clients::CREATOR;
use super::command::Input;
use super::end::SIGNAL_GRACE;
use super::events::{Event, Freeze};
use super::output::Sink;
use crate::Lost;
use crate::guest::Broken;
use crate::protocol::Reply;

/// How long a machine may take to end after its agent's stream has ended.
const END_OF_MACHINE: Duration = Duration::from_secs(10);

/// A source of poll(2) that became ready.
#[derive(Clone, Copy, Debug)]
enum Source {
    Link,
    Entrance,
    Inbox,
    /// A signal that asks this process to end.
    Signal,
    Client(ClientId),
    Stdin(u32),
    Output(u32, OutputStream),
    /// The copy of an output for a client that has attached.
    Copy(u32, OutputStream, (ClientId, u32)),
}

impl Owner {
    /// Waits for events, and handles them.
    pub(super) fn turn(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        for (source, ready) in self.wait()? {
            match source {
                Source::Link => self.read_link(ready, buffer),
                Source::Entrance => {
                    while let Some(socket) = self.entrance.accept() {
                        self.clients.add(socket);
                    }
                }
                Source::Inbox => {
                    for event in self.events.inbox.take() {
                        self.event(event);
                    }
                }
                Source::Signal => {
                    self.events.take_signals();
                    self.begin_end(Some(SIGNAL_GRACE));
                }
                Source::Client(id) => self.read_client(id, ready, buffer),
                Source::Stdin(id) => self.read_stdin(id, buffer),
                Source::Output(id, stream) => self.write_output(id, stream, ready),
                Source::Copy(id, stream, client) => self.write_copy(id, stream, client, ready),
            }
        }
        self.check_deadlines();
        self.guest.link.flush();
        self.flush();
        Ok(())
    }

    /// Sends clients what they can take.
    pub(super) fn flush(&mut self) {
        let ids: Vec<_> = self.clients.iter().map(|(id, _)| id).collect();
        for id in ids {
            let client = self.clients.get_mut(id);
            if client.is_some_and(|client| client.flush().is_err()) {
                self.client_gone(id);
                self.clients.remove(id);
            }
        }
    }

    /// Waits for ready sources. Returns none of them when a deadline passes first.
    fn wait(&self) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut sources = Vec::new();
        let mut fds = Vec::new();
        let mut add = |source, fd, events| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, events));
        };
        if self.guest.is_linked {
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, self.guest.link.has_unsent());
            add(Source::Link, self.guest.link.as_fd(), events);
        }
        add(Source::Inbox, self.events.inbox.as_fd(), PollFlags::IN);
        add(Source::Signal, self.events.signals.as_fd(), PollFlags::IN);
        if let Some(socket) = self.entrance.socket() {
            add(Source::Entrance, socket, PollFlags::IN);
        }
        for (id, client) in self.clients.iter() {
            let mut events = PollFlags::empty();
            events.set(PollFlags::IN, !client.is_full() && !client.has_ended);
            events.set(PollFlags::OUT, client.has_unsent());
            add(Source::Client(id), client.as_fd(), events);
        }
        let has_room = self.guest.link.outbox.stdin_room() > 0 && !self.saving.freezer.saves();
        for (id, command) in self.commands.iter() {
            if let Input::Descriptor(descriptor) = &command.stdin
                && command.runs()
                && has_room
                && command.stdin_window.available() > 0
            {
                add(Source::Stdin(id), descriptor.as_fd(), PollFlags::IN);
            }
            for (stream, output) in [
                (OutputStream::Stdout, &command.stdout),
                (OutputStream::Stderr, &command.stderr),
            ] {
                if let Sink::Descriptor(descriptor) = &output.sink {
                    // Without requested events, poll(2) still reports that nothing reads it any
                    // more.
                    let mut events = PollFlags::empty();
                    events.set(PollFlags::OUT, output.is_pending());
                    add(Source::Output(id, stream), descriptor.as_fd(), events);
                }
                for copy in output.copies.iter() {
                    if let Some((descriptor, is_behind)) = copy.descriptor() {
                        let mut events = PollFlags::empty();
                        events.set(PollFlags::OUT, is_behind);
                        add(Source::Copy(id, stream, copy.client), descriptor, events);
                    }
                }
            }
        }
        let left = self
            .deadline()
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(sources
            .into_iter()
            .zip(fds.iter().map(PollFd::revents))
            .filter(|(_, ready)| !ready.is_empty())
            .collect())
    }

    /// Returns the next deadline.
    fn deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.commands.deadline(),
            self.guest.up_deadline,
            self.end.deadline(),
            self.saving.freezer.deadline(),
            self.stall.deadline(),
            self.entrance.accept_at,
            self.expiry_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    fn check_deadlines(&mut self) {
        let now = Instant::now();
        let is_due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if is_due(self.guest.up_deadline) {
            self.guest.up_deadline = None;
            self.lose(Lost::silent(&*self.machine));
        }
        if is_due(self.saving.freezer.deadline()) {
            self.freeze_over(Err("the guest did not answer in time".to_owned()));
        }
        if is_due(self.entrance.accept_at) {
            self.entrance.accept_at = None;
        }
        if is_due(self.stall.deadline()) {
            self.stall.watch(now);
            if let Some(stalled) = self.stall.look(&*self.machine) {
                self.clients.send(CREATOR, 0, &Reply::Stalled { stalled });
            }
        }
        for id in self.commands.late(now) {
            self.time_is_over(id);
        }
        let is_busy = self.saving.freezer.is_busy();
        for id in self.commands.unanswered(now, is_busy) {
            self.unanswered(id);
        }
        self.check_expiry();
        self.check_end();
    }

    fn read_link(&mut self, ready: PollFlags, buffer: &mut [u8]) {
        if ready.intersects(PollFlags::OUT) {
            self.guest.link.flush();
        }
        if !ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        let mut result = self.guest.link.receive(buffer);
        while result.is_ok() {
            match self.guest.link.next_message() {
                Ok(Some(message)) => {
                    if let Err(violation) = self.handle(message) {
                        result = Err(Broken::Violation(violation));
                    }
                }
                Ok(None) => return,
                Err(broken) => result = Err(broken),
            }
        }
        match result {
            Err(Broken::Violation(why)) => {
                self.guest.is_linked = false;
                let machine = &*self.machine;
                self.lose(Lost::end_of_conversation(
                    machine,
                    Some(why),
                    Duration::ZERO,
                ));
            }
            Err(Broken::Ended) => {
                self.guest.is_linked = false;
                // The machine's end is the better reason.
                self.events.in_a_thread(&self.machine, |machine| {
                    Event::Lost(Lost::end_of_conversation(machine, None, END_OF_MACHINE))
                });
            }
            Ok(()) => {}
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Freeze(Freeze::Frozen) => self.frozen(),
            Event::Freeze(Freeze::Over(over)) => self.freeze_over(over),
            Event::Pause(pausing) => self.pausing(pausing),
            Event::Lost(lost) => self.lose(lost),
            Event::Gone(is_gone) => self.conclude(is_gone),
        }
    }
}
