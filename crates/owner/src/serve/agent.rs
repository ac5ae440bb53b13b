//! Handles messages from the agent. The guest is hostile: nothing that it sends makes the owner
//! hold more than windows allow, and a violation of the protocol ends the machine.

use std::time::Instant;

use micabox_wire::{MAX_DATA, OutputStream, SendWindow, ToGuest, ToHost};
use rustix::event::PollFlags;

use super::command::{Command, Input, Sink};
use super::{First, Owner, STALL_LOOK};
use crate::Lost;
use crate::protocol::frame::Pipe;
use crate::protocol::{Failure, Kind, Reply, Stream, Up};
use crate::socket::Listener;

impl Owner {
    /// Handles a message from the guest.
    ///
    /// # Errors
    /// How the message violates the protocol, for the user.
    pub(super) fn handle(&mut self, message: ToHost) -> Result<(), String> {
        let now = Instant::now();
        match message {
            ToHost::Hello(hello) => {
                let boot = self.boot.take();
                let boot = boot.ok_or("an unexpected Hello from the guest")?;
                self.hello = Some((now, hello));
                self.link.outbox.push(ToGuest::Boot(boot));
            }
            ToHost::Booted(timings) => {
                if self.hello.is_none() || self.up.is_some() {
                    return Err("an unexpected Booted from the guest".into());
                }
                self.up(now, timings.phases);
            }
            ToHost::BootFailed(failure) => {
                if self.up.is_some() {
                    return Err("BootFailed from a guest that had booted".into());
                }
                self.lose(Lost::boot_failed(&failure));
            }
            ToHost::Restored => {
                if self.hello.is_some() || self.boot.is_some() || self.up.is_some() {
                    return Err("an unexpected Restored from the guest".into());
                }
                self.up(now, Vec::new());
            }
            ToHost::Started {
                id,
                pid,
                stdin_window,
            } => {
                let command = self.starting(id)?;
                command.start = Some(Ok(pid));
                command.started = Some(now);
                command.stdin_window = SendWindow::new(stdin_window);
                if let Some(first) = self.first_with(id) {
                    first.started = Some(now);
                }
                self.started(id);
            }
            ToHost::StartFailed { id, failure } => {
                self.starting(id)?.start = Some(Err(failure));
                self.link.outbox.forget(id);
                if let Some(first) = self.first_with(id) {
                    first.has_ended = true;
                }
                self.started(id);
            }
            ToHost::Output { id, stream, data } => {
                if data.len() > MAX_DATA {
                    return Err(format!("the guest sent {} bytes at once", data.len()));
                }
                let command = self.running(id)?;
                command
                    .output(stream)
                    .received(data.len())
                    .map_err(|error| error.to_string())?;
                let is_first = command.first_output.is_none();
                command.first_output.get_or_insert(now);
                if is_first && let Some(first) = self.first_with(id) {
                    first.first_output = Some(now);
                }
                self.pass_on(id, stream, &data);
            }
            ToHost::Exited { id, status } => {
                self.running(id)?.exit = Some(status);
                self.link.outbox.forget(id);
                if let Some(first) = self.first_with(id) {
                    first.has_ended = true;
                }
                self.complete(id);
            }
            ToHost::StdinCredit { id, bytes } => {
                let command = self.running(id)?;
                command
                    .stdin_window
                    .grant(bytes)
                    .map_err(|error| error.to_string())?;
                let (is_framed, client) = (matches!(command.stdin, Input::Frames), command.client);
                if let Some((client, number)) = client.filter(|_| is_framed) {
                    self.send(client, number, &Reply::Credit { bytes });
                }
            }
            ToHost::StdinClosed { id } => {
                let command = self.running(id)?;
                command.stdin = Input::Closed;
                if let Some((client, number)) = command.client {
                    self.send(client, number, &Reply::StdinClosed);
                }
            }
            ToHost::Quiesced => {
                if self.freezer.is_quiescing() {
                    self.freezer.freeze(&self.machine, &self.notifier);
                }
            }
            ToHost::ShutdownDone { problem } => self.shut_down(problem),
        }
        Ok(())
    }

    fn starting(&mut self, id: u32) -> Result<&mut Command, String> {
        self.commands
            .get_mut(&id)
            .filter(|command| command.start.is_none())
            .ok_or_else(|| format!("the guest started command {id} without a request"))
    }

    fn running(&mut self, id: u32) -> Result<&mut Command, String> {
        self.commands
            .get_mut(&id)
            .filter(|command| command.runs())
            .ok_or_else(|| format!("the guest sent a message of command {id}, which does not run"))
    }

    fn first_with(&mut self, id: u32) -> Option<&mut First> {
        self.first.as_mut().filter(|first| first.id == id)
    }

    /// Makes the sandbox ready for commands: binds the socket and notifies the creator.
    fn up(&mut self, now: Instant, phases: Vec<micabox_wire::Phase>) {
        self.up = Some((now, phases));
        self.up_deadline = None;
        let bound = Listener::bind(&self.directory);
        let ready = bound.and_then(|listener| {
            self.listener = Some(listener);
            let registrar = self.registrar.as_mut();
            registrar.map_or(Ok(()), |registrar| registrar.running())
        });
        if let Err(error) = ready {
            let message = format!("listening for requests: {error}");
            let failure = Failure::new(Kind::Invalid, message);
            self.send(self.creator, 0, &Reply::Failed(failure));
            self.die();
            return;
        }
        if self.disk.is_some() {
            self.next_stall_look = Some(now + STALL_LOOK);
        }
        let directory = self.directory.clone();
        self.send(self.creator, 0, &Reply::Up(Up { directory }));
    }

    /// Notifies the client that a command runs, or that its start failed.
    pub(super) fn started(&mut self, id: u32) {
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        let Some(((client, number), start)) = command.client.zip(command.start.clone()) else {
            // Unclaimed, or released. A released one whose start failed is removed.
            if matches!(command.start, Some(Err(_))) && self.unclaimed != Some(id) {
                self.commands.remove(&id);
            }
            return;
        };
        match start {
            Ok(pid) => {
                command.deadline = command
                    .timeout
                    .and_then(|time| Instant::now().checked_add(time));
                let window = match command.stdin {
                    Input::Frames => command.stdin_window.available() as u32,
                    Input::Closed | Input::Idle | Input::Descriptor(_) => 0,
                };
                self.send(client, number, &Reply::Started { pid, window });
            }
            Err(failure) => {
                let lifetime = command.lifetime;
                self.commands.remove(&id);
                if let Some(client) = self.clients.get_mut(&client) {
                    client.commands.remove(&number);
                }
                let code = u8::try_from(failure.exit_code()).ok();
                let failure = Failure::from(failure);
                self.send(client, number, &Reply::Failed(failure.clone()));
                if lifetime {
                    self.end.code = code;
                    self.end.failure = Some(failure);
                    self.finish();
                }
            }
        }
    }

    /// Passes output on to its sink.
    pub(super) fn pass_on(&mut self, id: u32, stream: OutputStream, data: &[u8]) {
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        let client = command.client;
        let output = command.output(stream);
        let written = match &output.sink {
            Sink::Frames => {
                if let Some((client, number)) = client
                    && let Some(client) = self.clients.get_mut(&client)
                {
                    client.data(number, pipe(stream), data);
                }
                // The client's credit comes when it has consumed the output.
                Ok(0)
            }
            Sink::Log => {
                if let Some(registrar) = &mut self.registrar {
                    registrar.log(log_stream(stream), data);
                }
                Ok(data.len())
            }
            Sink::Held | Sink::Discard | Sink::Broken | Sink::Descriptor(_) => output.write(data),
        };
        match written {
            Ok(count) => {
                let credit = output.handed_on(count);
                self.link.outbox.credit(id, stream, credit);
            }
            Err(_) => self.output_broken(id, stream, true),
        }
    }

    /// Handles an output's descriptor that is writable, or that nothing reads any more.
    pub(super) fn write_output(&mut self, id: u32, stream: OutputStream, ready: PollFlags) {
        if ready.intersects(PollFlags::OUT) {
            self.pass_on(id, stream, &[]);
            self.complete(id);
        } else if ready.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            self.output_broken(id, stream, stream == OutputStream::Stdout);
        }
    }

    /// Handles an output that nothing reads any more. If it belongs to the command with the
    /// sandbox's lifetime and `matters` (it is stdout, or more was to be written), the command and
    /// the sandbox end.
    fn output_broken(&mut self, id: u32, stream: OutputStream, matters: bool) {
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        let output = command.output(stream);
        let credit = output.discard();
        if !matters {
            output.sink = Sink::Broken;
        }
        let (lifetime, has_ended) = (command.lifetime, command.exit.is_some());
        if !has_ended {
            self.link.outbox.credit(id, stream, credit);
        }
        if matters && lifetime {
            self.unseen(id);
        }
        self.complete(id);
    }

    /// Reads a command's stdin from its descriptor.
    pub(super) fn read_stdin(&mut self, id: u32, buffer: &mut [u8]) {
        let room = self.link.outbox.stdin_room();
        let Some(command) = self.commands.get_mut(&id).filter(|command| command.runs()) else {
            return;
        };
        let most = command.stdin_window.available().min(MAX_DATA).min(room);
        let part = buffer.get_mut(..most).unwrap_or_default();
        if part.is_empty() {
            return;
        }
        match command.stdin.read(part) {
            Some(0) => {}
            Some(count) => {
                let data = part.get(..count).unwrap_or_default().to_vec();
                // No more was read than the window allows.
                let _ = command.stdin_window.take(count);
                self.link.outbox.push(ToGuest::Stdin { id, data });
            }
            None => {
                command.stdin = Input::Closed;
                self.link.outbox.push(ToGuest::CloseStdin { id });
            }
        }
    }
}

pub(super) fn pipe(stream: OutputStream) -> Pipe {
    match stream {
        OutputStream::Stdout => Pipe::Stdout,
        OutputStream::Stderr => Pipe::Stderr,
    }
}

fn log_stream(stream: OutputStream) -> Stream {
    match stream {
        OutputStream::Stdout => Stream::Stdout,
        OutputStream::Stderr => Stream::Stderr,
    }
}
