//! Handles clients' requests.

use std::time::Duration;

use micabox_wire::{OutputStream, ToGuest};
use rustix::event::PollFlags;

use super::Owner;
use super::client::ClientId;
use super::clients::CREATOR;
use super::command::{Input, InputOf, Kill};
use super::freezer::Beat;
use super::output::{OUTPUTS, Sink};
use crate::protocol::frame::{FrameError, Pipe};
use crate::protocol::{Failure, Frame, Kind, Reply, Request};

impl Owner {
    /// Handles a connection that is readable, is writable, or has ended.
    pub(super) fn read_client(&mut self, id: ClientId, ready: PollFlags, buffer: &mut [u8]) {
        let Some(client) = self.clients.get_mut(id) else {
            return;
        };
        if ready.intersects(PollFlags::OUT) && client.flush().is_err() {
            return self.client_gone(id);
        }
        if client.has_ended {
            // The client does not receive any more either.
            if ready.intersects(PollFlags::HUP | PollFlags::ERR) {
                self.clients.remove(id);
            }
            return;
        }
        if !ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        let is_open = client.receive(buffer);
        while let Some(client) = self.clients.get_mut(id) {
            match client.next_frame() {
                Ok(Some(Frame::Message(number, request))) => self.request(id, number, request),
                Ok(Some(Frame::Data(number, Pipe::Stdin, data))) => self.stdin(id, number, data),
                Err(FrameError::Message { number, why }) => self.malformed(id, number, &why),
                Ok(None) => break,
                // The stream can't be decoded any further.
                Ok(Some(Frame::Data(..))) | Err(_) => return self.client_gone(id),
            }
        }
        if !is_open {
            self.client_gone(id);
        }
    }

    /// Answers a message that can't be decoded. One about a command that runs is ignored: the client would take
    /// the answer for that to its request to start the command.
    fn malformed(&mut self, client: ClientId, number: u32, why: &str) {
        let files = self
            .clients
            .get(client)
            .map(|client| client.descriptors.len());
        if files != Some(0) {
            // It is unknown which of them were the message's.
            return self.client_gone(client);
        }
        if self.clients.command_of(client, number).is_none() {
            let failure = Failure::new(Kind::Invalid, format!("the request is malformed: {why}"));
            self.clients.send(client, number, &Reply::Failed(failure));
        }
    }

    /// Cleans up after a client that is gone: its commands that are not detached are killed.
    pub(super) fn client_gone(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else {
            return;
        };
        let commands = std::mem::take(&mut client.commands);
        let attached = std::mem::take(&mut client.attached);
        // The creator still receives the sandbox's end, and its connection ends when everything is
        // gone.
        client.has_ended = true;
        if id != CREATOR {
            self.clients.remove(id);
        }
        self.saving.freezer.forget(id);
        self.end.waiting.retain(|(waiting, _)| *waiting != id);
        self.end.watching.retain(|(watching, _)| *watching != id);
        for (number, command) in attached {
            self.leave_attached(command, (id, number));
        }
        for command in commands.into_values() {
            let detach = self
                .commands
                .get(command)
                .is_some_and(|command| command.detach);
            if detach {
                self.release(command, false)
            } else {
                self.abandon(command)
            }
        }
        let is_recorded = self.registrar.is_none();
        if id == CREATOR && !self.clients.is_detached && !is_recorded {
            // Like a power cut.
            self.end.is_abandoned = !self.end.is_killed;
            self.end.is_killed = true;
            self.machine.kill();
        }
    }

    /// Lets the sandbox continue without its creator.
    fn detach(&mut self, client: ClientId, number: u32) -> Result<(), Failure> {
        if client != CREATOR {
            let message = "only the creator can detach";
            return Err(Failure::new(Kind::Invalid, message));
        }
        let ending = || Failure::new(Kind::Ending, "the sandbox is about to end");
        let registrar = self.registrar.as_mut().ok_or_else(ending)?;
        registrar
            .detached()
            .map_err(|error| Failure::new(Kind::Invalid, error.to_string()))?;
        self.clients.is_detached = true;
        self.clients.send(client, number, &Reply::Detached);
        Ok(())
    }

    /// Gives the sandbox another name.
    fn rename(&mut self, client: ClientId, number: u32, name: &str) -> Result<(), Failure> {
        let ending = || Failure::new(Kind::Ending, "the sandbox is about to end");
        let registrar = self.registrar.as_mut().ok_or_else(ending)?;
        registrar
            .rename(name)
            .map_err(|error| Failure::new(Kind::Invalid, error.to_string()))?;
        self.clients.send(client, number, &Reply::Renamed);
        Ok(())
    }

    fn request(&mut self, client: ClientId, number: u32, request: Request) {
        let done = match request {
            Request::Exec(exec) => self.exec(client, number, &exec),
            Request::Reattach(exec) => self.reattach(client, number, &exec),
            Request::Attach(attach) => self.attach(client, number, &attach),
            Request::Commands => {
                self.list(client, number);
                Ok(())
            }
            Request::Signal { signal } => self.on_any(client, number, |owner, id| {
                owner.signal(id, signal);
            }),
            Request::SignalFirst { signal } => self.signal_first(client, number, signal),
            Request::Resize(size) => self.on_any(client, number, |owner, id| {
                owner.guest.send(ToGuest::Resize { id, size });
            }),
            Request::Credit { stream, bytes } if self.clients.is_attached(client, number) => {
                self.credit_copy(client, number, stream.into(), bytes);
                Ok(())
            }
            Request::Credit { stream, bytes } => self.on_command(client, number, |owner, id| {
                owner.credit(id, stream.into(), bytes);
            }),
            Request::Release if self.clients.is_attached(client, number) => {
                self.on_any(client, number, |owner, id| {
                    owner.leave_attached(id, (client, number))
                })
            }
            Request::Release => self.on_command(client, number, |owner, id| {
                owner.release(id, true);
            }),
            Request::Leave if self.clients.is_attached(client, number) => {
                self.on_any(client, number, |owner, id| {
                    owner.leave_attached(id, (client, number))
                })
            }
            Request::Leave => self.on_command(client, number, Self::leave),
            Request::Expire {
                idle_timeout,
                max_life,
            } => {
                self.expire(client, number, idle_timeout, max_life);
                Ok(())
            }
            Request::EndIn { millis } => self.end_in(client, number, millis),
            Request::Limit { limit } => self.limit(client, number, limit),
            Request::Stats => self.reply(client, number, &Reply::Stats(self.stats())),
            Request::Uncount => {
                self.clients.uncount(client);
                self.reply(client, number, &Reply::Uncounted)
            }
            Request::Pause => self.pause(client, number),
            Request::Unpause => self.unpause(client, number),
            Request::Rename { name } => self.rename(client, number, &name),
            Request::Wait => {
                self.watch(client, number);
                Ok(())
            }
            Request::Detach => self.detach(client, number),
            Request::Stop { grace } => {
                self.note("stop", &[]);
                self.end.waiting.push((client, number));
                self.begin_end(Some(Duration::from_millis(grace)));
                Ok(())
            }
            Request::End => {
                self.end.waiting.push((client, number));
                if self.end.is_killed || (self.sandbox.disk.is_none() && self.network.is_none()) {
                    self.die();
                } else {
                    self.begin_end(None);
                }
                Ok(())
            }
            Request::Kill => {
                self.end.waiting.push((client, number));
                self.end.is_killed = true;
                self.machine.kill();
                Ok(())
            }
            Request::Freeze { memory, delta } => self.freeze(client, number, memory, delta),
            Request::Hold => {
                self.saving.freezer.beat(client, Beat::Hold);
                Ok(())
            }
            Request::Thaw => {
                self.saving.freezer.beat(client, Beat::Thaw);
                Ok(())
            }
            Request::Info => self.reply(client, number, &Reply::Info(self.info())),
        };
        if let Err(failure) = done {
            self.clients.send(client, number, &Reply::Failed(failure));
        }
    }

    fn reply(&mut self, client: ClientId, number: u32, reply: &Reply) -> Result<(), Failure> {
        self.clients.send(client, number, reply);
        Ok(())
    }

    /// Applies `act` to a client's command; does nothing if the command has ended.
    fn on_command(
        &mut self,
        client: ClientId,
        number: u32,
        act: impl FnOnce(&mut Self, u32),
    ) -> Result<(), Failure> {
        if let Some(id) = self.clients.started_by(client, number) {
            act(self, id);
        }
        Ok(())
    }

    /// As [`Owner::on_command`], for commands that the client is attached to as well.
    fn on_any(
        &mut self,
        client: ClientId,
        number: u32,
        act: impl FnOnce(&mut Self, u32),
    ) -> Result<(), Failure> {
        if let Some(id) = self.clients.command_of(client, number) {
            act(self, id);
        }
        Ok(())
    }

    /// Handles a frame of stdin; an empty one is the end.
    fn stdin(&mut self, client: ClientId, number: u32, data: Vec<u8>) {
        let Some(id) = self.clients.command_of(client, number) else {
            return;
        };
        let (us, is_attached) = (
            Some((client, number)),
            self.clients.is_attached(client, number),
        );
        let Some(command) = self.commands.get_mut(id).filter(|command| command.runs()) else {
            return;
        };
        let is_ours = match command.stdin {
            Input::Descriptor(_) if data.is_empty() && command.attached_input() == us => {
                // What is in the descriptor comes first.
                command.input_of = us.map(|client| InputOf { client, ends: true });
                return;
            }
            // An attached client's descriptor has ended already.
            Input::Idle => data.is_empty() && is_attached && command.input_of.is_none(),
            _ => command.typist() == us,
        };
        if !is_ours {
            return;
        }
        if data.is_empty() {
            command.stdin = Input::Closed;
            self.guest.send(ToGuest::CloseStdin { id });
        } else if command.stdin_window.take(data.len()).is_ok() {
            self.guest.send(ToGuest::Stdin { id, data });
        } else {
            self.client_gone(client);
        }
    }

    fn credit(&mut self, id: u32, stream: OutputStream, bytes: u32) {
        if let Some(command) = self.commands.get_mut(id)
            && matches!(command.output(stream).sink, Sink::Frames)
        {
            let credit = command.output(stream).handed_on(bytes as usize);
            self.guest.credit(id, stream, credit);
        }
    }

    /// Kills a command, as soon as it has started, and detaches it from its client.
    pub(super) fn abandon(&mut self, id: u32) {
        if let Some(command) = self.commands.get_mut(id) {
            command.kill = Kill::Abandoned;
        }
        self.signal(id, libc::SIGKILL);
        self.release(id, true);
    }

    /// Detaches a command from its client; with `streams`, closes its descriptors too.
    pub(super) fn release(&mut self, id: u32, streams: bool) {
        let Some(command) = self.commands.get_mut(id) else {
            return;
        };
        if let Some((client, number)) = command.take_client() {
            self.clients.remove_command(client, number);
        }
        if streams {
            command.stdin = Input::Closed;
            if command.runs() {
                self.guest.send(ToGuest::CloseStdin { id });
            }
        } else if command.input_of.is_none() && matches!(command.stdin, Input::Frames) {
            // Another client may attach to it.
            command.stdin = Input::Idle;
        }
        for stream in OUTPUTS {
            let is_running = command.status().is_none();
            let output = command.output(stream);
            if matches!(output.sink, Sink::Frames) || streams {
                let credit = output.discard().filter(|_| is_running);
                self.guest.credit(id, stream, credit);
            }
        }
        self.complete(id);
    }
}
