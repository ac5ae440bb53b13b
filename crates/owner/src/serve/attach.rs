//! Clients that attach to commands, and those that leave theirs running.

use std::os::fd::OwnedFd;

use micabox_wire::{OutputStream, SendWindow};

use super::Owner;
use super::client::ClientId;
use super::command::{Input, Sink, output_window};
use super::copies::Target;
use crate::descriptor::{Descriptor, Way};
use crate::protocol::{Attach, Failure, Kind, Place, Reply};

const OUTPUTS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];

/// Where an attached client has a stream.
enum Given {
    Nothing,
    Frames,
    Descriptor(OwnedFd),
}

impl Owner {
    /// Attaches a client to a command: its outputs are copied to the client, and its stdin comes from
    /// the client if it is open and idle.
    pub(super) fn attach(
        &mut self,
        client: ClientId,
        number: u32,
        attach: &Attach,
    ) -> Result<(), Failure> {
        let stdin = self.given(client, attach.stdin)?;
        let outputs = [attach.stdout, attach.stderr].map(|place| self.given(client, place));
        let [stdout, stderr] = outputs;
        let outputs = [stdout?, stderr?];
        self.check_new(client, number)?;
        let us = (client, number);
        let (id, pid) = match attach.pid {
            None => self.running_first()?,
            Some(pid) => (self.running_with(pid)?, pid),
        };
        let nothing = || Failure::new(Kind::Invalid, NOTHING_RUNS);
        let command = self.commands.get_mut(&id).ok_or_else(nothing)?;
        let is_idle = matches!(command.stdin, Input::Idle);
        match stdin {
            Given::Descriptor(_) if command.input_of.is_some() => {
                let message = "another client is attached to the command's stdin";
                return Err(Failure::new(Kind::Invalid, message));
            }
            Given::Descriptor(stdin) if is_idle => {
                command.stdin = Input::Descriptor(Descriptor::new(stdin, Way::In));
                command.input_of = Some(us);
            }
            Given::Frames if is_idle => {
                command.stdin = Input::Frames;
                command.input_of = Some(us);
            }
            Given::Nothing | Given::Frames | Given::Descriptor(_) => {}
        }
        let window = output_window(attach.window);
        for (stream, output) in OUTPUTS.into_iter().zip(outputs) {
            let target = match output {
                Given::Nothing => Target::Nothing,
                Given::Frames => Target::Frames(SendWindow::new(window)),
                Given::Descriptor(descriptor) => {
                    Target::Descriptor(Descriptor::new(descriptor, Way::Out))
                }
            };
            command.output(stream).copies.add(us, target);
        }
        let is_framed = command.typist() == Some(us);
        let attached = Reply::Attached {
            pid,
            tty: command.has_tty,
            stdin: command.input_of == Some(us),
            window: if is_framed {
                u32::try_from(command.stdin_window.available()).unwrap_or(u32::MAX)
            } else {
                0
            },
        };
        if let Some(client) = self.clients.get_mut(&client) {
            client.attached.insert(number, id);
        }
        self.send(client, number, &attached);
        Ok(())
    }

    /// Returns where a client that attaches has a stream, with the descriptor that came with the request.
    fn given(&mut self, client: ClientId, place: Place) -> Result<Given, Failure> {
        let invalid = |message: &str| Failure::new(Kind::Invalid, message);
        match place {
            Place::Null => Ok(Given::Nothing),
            Place::Frames => Ok(Given::Frames),
            Place::Descriptor => {
                let client = self.clients.get_mut(&client);
                let descriptor = client.and_then(|client| client.descriptors.pop_front());
                descriptor
                    .map(Given::Descriptor)
                    .ok_or_else(|| invalid("a descriptor is missing"))
            }
            Place::Idle | Place::Log => Err(invalid(
                "streams of `attach` are `null`, `frames` or `descriptor`",
            )),
        }
    }

    /// Lists the commands that run and have a note.
    pub(super) fn list(&mut self, client: ClientId, number: u32) {
        let running = self.commands.values().filter(|command| command.runs());
        let noted = running.filter(|command| !command.note.is_empty());
        let mut list: Vec<_> = noted
            .filter_map(|command| {
                Some(Reply::Command {
                    pid: *command.start.as_ref()?.as_ref().ok()?,
                    tty: command.has_tty,
                    note: command.note.clone(),
                })
            })
            .collect();
        list.push(Reply::Listed);
        for reply in list {
            self.send(client, number, &reply);
        }
    }

    /// Returns the number of the command with this PID, if it runs.
    fn running_with(&self, pid: u32) -> Result<u32, Failure> {
        let mut commands = self.commands.iter();
        let found = commands.find(|(id, command)| {
            let is_claimed = self.unclaimed != Some(**id);
            is_claimed && command.runs() && matches!(command.start, Some(Ok(other)) if other == pid)
        });
        found.map(|(&id, _)| id).ok_or_else(|| {
            let message = format!("no command with the process ID {pid} runs");
            Failure::new(Kind::NotFound, message)
        })
    }

    /// Lets more of an output be sent to a client that is attached.
    pub(super) fn credit_copy(
        &mut self,
        client: ClientId,
        number: u32,
        stream: OutputStream,
        bytes: u32,
    ) {
        let attached = self.clients.get(&client).map(|client| &client.attached);
        let Some(&id) = attached.and_then(|attached| attached.get(&number)) else {
            return;
        };
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        let copies = &mut command.output(stream).copies;
        if copies.grant((client, number), bytes).is_err() {
            return self.client_gone(client);
        }
        self.write_copies(id, stream);
    }

    /// Returns the number and the PID of the first command if it runs, and belongs to a client.
    fn running_first(&self) -> Result<(u32, u32), Failure> {
        let first = self.first.filter(|first| !first.has_ended);
        let first = first.filter(|first| self.unclaimed != Some(first.id));
        let running = first.and_then(|first| {
            let command = self.commands.get(&first.id)?;
            let pid = *command.start.as_ref()?.as_ref().ok()?;
            command.runs().then_some((first.id, pid))
        });
        running.ok_or_else(|| Failure::new(Kind::Invalid, NOTHING_RUNS))
    }

    /// Sends the first command a signal.
    pub(super) fn signal_first(
        &mut self,
        client: ClientId,
        number: u32,
        signal: i32,
    ) -> Result<(), Failure> {
        if !(1..=libc::SIGRTMAX()).contains(&signal) {
            return Err(Failure::new(
                Kind::Invalid,
                format!("no such signal: {signal}"),
            ));
        }
        let (id, _) = self.running_first()?;
        self.signal_alone(id, signal);
        self.note("kill", &[("signal", signal.to_string())]);
        // As with Docker: a command that is to end can't while the sandbox is paused. Other signals
        // arrive when it is resumed.
        if [libc::SIGKILL, self.stop_signal].contains(&signal) {
            self.resume();
        }
        self.send(client, number, &Reply::Signaled);
        Ok(())
    }

    /// Detaches a client from a command that it is attached to.
    pub(super) fn leave_attached(&mut self, id: u32, us: (ClientId, u32)) {
        if let Some(client) = self.clients.get_mut(&us.0) {
            client.attached.remove(&us.1);
        }
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        // What the descriptor of a client that has ended the stdin still has is read first.
        if command.input_of == Some(us) && !command.input_ends {
            command.input_of = None;
            if !matches!(command.stdin, Input::Closed) {
                command.stdin = Input::Idle;
            }
        }
        let is_running = command.exit.is_none();
        for stream in OUTPUTS {
            let output = command.output(stream);
            output.copies.remove(us);
            let credit = output.handed_on(0).filter(|_| is_running);
            self.link.outbox.credit(id, stream, credit);
        }
        self.complete(id);
    }

    /// Detaches a command from its client: it continues with an idle stdin. The output of the one
    /// with the sandbox's lifetime goes to the log.
    pub(super) fn leave(&mut self, id: u32) {
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        if let Some((client, number)) = command.client.take()
            && let Some(client) = self.clients.get_mut(&client)
        {
            client.commands.remove(&number);
        }
        let is_theirs = command.input_of.is_none();
        if is_theirs && matches!(command.stdin, Input::Frames | Input::Descriptor(_)) {
            command.stdin = Input::Idle;
        }
        let (lifetime, is_running) = (command.lifetime, command.exit.is_none());
        for stream in OUTPUTS {
            let output = command.output(stream);
            if matches!(output.sink, Sink::Log | Sink::Discard) {
                continue;
            }
            let held = output.take_held();
            let credit = output.discard().filter(|_| is_running);
            if lifetime {
                output.sink = Sink::Log;
                if let Some(registrar) = self.registrar.as_mut().filter(|_| !held.is_empty()) {
                    registrar.log(super::agent::log_stream(stream), &held);
                }
            }
            self.link.outbox.credit(id, stream, credit);
        }
        self.complete(id);
    }
}

const NOTHING_RUNS: &str = "the sandbox has no command that runs";
