//! Handles messages from the agent. The guest is hostile: nothing that it sends makes the owner
//! hold more than windows allow, and a violation of the protocol ends the machine.

use std::time::Instant;

use micabox_wire::{MAX_DATA, OutputStream, SendWindow, ToGuest, ToHost};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::client::ClientId;
use super::command::{Command, Input, Sink};
use super::freeze::wall_clock;
use super::{First, Owner, STALL_LOOK};
use crate::Lost;
use crate::protocol::frame::Pipe;
use crate::protocol::{Failure, Kind, Reply, Stream, Up};
use crate::socket::Listener;

/// Most bytes of stdin that a guest may take at once: so many are kept for it.
const MAX_STDIN_WINDOW: usize = 1 << 20;

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
                let mut boot = boot.ok_or("an unexpected Hello from the guest")?;
                // It was described before the machine started; times in folders of the host are its.
                boot.identity.wall_clock = wall_clock();
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
                if stdin_window as usize > MAX_STDIN_WINDOW {
                    return Err(format!(
                        "the guest takes {stdin_window} bytes of stdin at once"
                    ));
                }
                let command = self.starting(id)?;
                command.start = Some(Ok(pid));
                command.started = Some(now);
                command.stdin_window = SendWindow::new(stdin_window);
                if command.is_abandoned {
                    self.signal(id, libc::SIGKILL);
                }
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
                if command.stdin_window.available() > MAX_STDIN_WINDOW {
                    return Err("the guest grants more stdin than a window has".to_owned());
                }
                if let Some((client, number)) = command.typist() {
                    self.send(client, number, &Reply::Credit { bytes });
                }
            }
            ToHost::StdinClosed { id } => {
                let command = self.running(id)?;
                command.stdin = Input::Closed;
                let clients = [command.client, command.input_of.take()];
                for (client, number) in clients.into_iter().flatten() {
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
        let command = self.commands.get_mut(&id);
        let command = command.filter(|command| command.start.is_none());
        let command =
            command.ok_or_else(|| format!("the guest started command {id} without a request"))?;
        command.answer_by = None;
        Ok(command)
    }

    /// Gives up a command that the guest has not answered about. One that starts later is killed.
    pub(super) fn unanswered(&mut self, id: u32) {
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        let limit = command.answer_timeout.filter(|_| command.runs());
        command.answer_timeout = None;
        let patience = match limit {
            Some(timeout) => timeout,
            // What is paused can't answer.
            None if self.freezer.is_busy() => {
                command.answer_by = Instant::now().checked_add(self.patience);
                return;
            }
            None => self.patience,
        };
        command.answer_by = None;
        let (client, lifetime) = (command.client, command.lifetime);
        let message = format!(
            "the guest has not answered for {} seconds",
            patience.as_secs()
        );
        let failure = Failure::new(Kind::Silent, message);
        if let Some((client, number)) = client {
            self.send(client, number, &Reply::Failed(failure.clone()));
        }
        self.abandon(id);
        if lifetime {
            self.end.failure = Some(failure);
            self.finish();
        }
    }

    /// Returns the command of a message that the guest has sent.
    fn running(&mut self, id: u32) -> Result<&mut Command, String> {
        let command = self.commands.get_mut(&id);
        let command = command.filter(|command| command.runs());
        let command = command.ok_or_else(|| {
            format!("the guest sent a message of command {id}, which does not run")
        })?;
        command.answer_by = None;
        Ok(command)
    }

    fn first_with(&mut self, id: u32) -> Option<&mut First> {
        self.first.as_mut().filter(|first| first.id == id)
    }

    /// Makes the sandbox ready for commands: binds the socket and notifies the creator.
    fn up(&mut self, now: Instant, phases: Vec<micabox_wire::Phase>) {
        let bound = Listener::bind(&self.directory);
        // Whoever stops the start looks for the socket once more after that.
        if let Some(stopped) = Lost::stopped(&self.directory) {
            return self.lose(stopped);
        }
        self.up = Some((now, phases));
        self.up_deadline = None;
        let ready = bound.and_then(|listener| {
            self.listener = Some(listener);
            let registrar = self.registrar.as_mut();
            registrar.map_or(Ok(()), |registrar| registrar.running())
        });
        if let Err(error) = ready {
            let message = format!("listening for requests: {error}");
            let failure = Failure::new(Kind::Unwritten, message);
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
        let clients = &mut self.clients;
        let broken = output.copies.write(data, |(client, number), bytes| {
            if let Some(client) = clients.get_mut(&client) {
                client.data(number, pipe(stream), bytes);
            }
        });
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
            Err(why) => self.output_broken(id, stream, true, why),
        }
        for (client, why) in broken {
            self.copy_broken(id, client, why);
        }
        self.drop_of_killed(id);
    }

    /// Handles the descriptor of an output's copy that is writable, or that nothing reads any more.
    pub(super) fn write_copy(
        &mut self,
        id: u32,
        stream: OutputStream,
        client: (ClientId, u32),
        ready: PollFlags,
    ) {
        if ready.intersects(PollFlags::OUT) {
            self.write_copies(id, stream);
        } else {
            self.copy_broken(id, client, Errno::PIPE);
        }
    }

    /// Writes what is pending to an output's copies.
    pub(super) fn write_copies(&mut self, id: u32, stream: OutputStream) {
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        let is_running = command.exit.is_none();
        let output = command.output(stream);
        let clients = &mut self.clients;
        let broken = output.copies.write(&[], |(client, number), bytes| {
            if let Some(client) = clients.get_mut(&client) {
                client.data(number, pipe(stream), bytes);
            }
        });
        let credit = output.handed_on(0).filter(|_| is_running);
        self.link.outbox.credit(id, stream, credit);
        for (client, why) in broken {
            self.copy_broken(id, client, why);
        }
        self.complete(id);
    }

    /// Detaches a client from a command because nothing reads the copy of its output, or it can't be written.
    fn copy_broken(&mut self, id: u32, client: (ClientId, u32), why: Errno) {
        let reply = match why {
            Errno::PIPE => Reply::Detached,
            why => {
                let why = std::io::Error::from(why);
                let message = format!("writing the command's output: {why}");
                Reply::Failed(Failure::new(Kind::Invalid, message))
            }
        };
        self.send(client.0, client.1, &reply);
        self.leave_attached(id, client);
    }

    /// Handles an output's descriptor that is writable, or that nothing reads any more.
    pub(super) fn write_output(&mut self, id: u32, stream: OutputStream, ready: PollFlags) {
        if ready.intersects(PollFlags::OUT) {
            self.pass_on(id, stream, &[]);
            self.complete(id);
        } else if ready.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            let command = self.commands.get(&id);
            // A program gets SIGPIPE only when it writes.
            let waits = command.is_some_and(|command| command.sigpipe);
            let matters = stream == OutputStream::Stdout && !waits;
            self.output_broken(id, stream, matters, Errno::PIPE);
        }
    }

    /// Handles an output that nothing reads any more, or that can't be written. If it belongs to the command with the
    /// sandbox's lifetime and `matters` (it is stdout, or more was to be written), the command and
    /// the sandbox end, unless the command continues without its client: its output is then dropped.
    /// Another command gets SIGPIPE, if it was started so.
    fn output_broken(&mut self, id: u32, stream: OutputStream, matters: bool, why: Errno) {
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        if why != Errno::PIPE {
            let why = std::io::Error::from(why).to_string();
            if command.lifetime {
                self.end.unwritten = Some(why.clone());
            }
            command.unwritten.get_or_insert(why);
        }
        let continues = command.lifetime && command.detach;
        let output = command.output(stream);
        let credit = output.discard();
        if continues {
            output.sink = Sink::Discard;
        } else if !matters {
            output.sink = Sink::Broken;
        }
        let (lifetime, has_ended) = (command.lifetime, command.exit.is_some());
        let sigpipe = command.sigpipe;
        if !has_ended {
            self.link.outbox.credit(id, stream, credit);
        }
        if matters && lifetime && !continues {
            self.unseen(id);
        } else if matters && sigpipe {
            self.signal(id, libc::SIGPIPE);
        }
        self.complete(id);
    }

    /// Reads a command's stdin from its descriptor.
    pub(super) fn read_stdin(&mut self, id: u32, buffer: &mut [u8]) {
        let room = self.link.outbox.stdin_room();
        let Some(command) = self.commands.get_mut(&id).filter(|command| command.runs()) else {
            return;
        };
        // An attached client may have left since poll(2).
        if !matches!(command.stdin, Input::Descriptor(_)) {
            return;
        }
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
            // The command keeps its stdin when an attached client's ends.
            None if command.input_of.take().is_some() && !command.input_ends => {
                command.stdin = Input::Idle;
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

pub(super) fn log_stream(stream: OutputStream) -> Stream {
    match stream {
        OutputStream::Stdout => Stream::Stdout,
        OutputStream::Stderr => Stream::Stderr,
    }
}
