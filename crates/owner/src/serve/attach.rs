//! Clients that attach to commands, and those that leave theirs running.

use std::os::fd::OwnedFd;

use micabox_wire::{OutputStream, SendWindow};

use super::Owner;
use super::client::ClientId;
use super::command::{Input, InputOf};
use super::commands::nothing_runs;
use super::copies::Target;
use super::output::{OUTPUTS, Sink, log_stream, output_window};
use crate::descriptor::{Descriptor, Way};
use crate::protocol::{Attach, Failure, Kind, Place, Reply};

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
            None => self.commands.running_first()?,
            Some(pid) => (self.commands.running_with(pid)?, pid),
        };
        let command = self.commands.get_mut(id).ok_or_else(nothing_runs)?;
        let input = InputOf {
            client: us,
            ends: false,
        };
        let is_idle = matches!(command.stdin, Input::Idle);
        match stdin {
            Given::Descriptor(_) if command.input_of.is_some() => {
                let message = "another client is attached to the command's stdin";
                return Err(Failure::new(Kind::Invalid, message));
            }
            Given::Descriptor(stdin) if is_idle => {
                command.stdin = Input::Descriptor(Descriptor::new(stdin, Way::In));
                command.input_of = Some(input);
            }
            Given::Frames if is_idle => {
                command.stdin = Input::Frames;
                command.input_of = Some(input);
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
            stdin: command.attached_input() == Some(us),
            window: if is_framed {
                u32::try_from(command.stdin_window.available()).unwrap_or(u32::MAX)
            } else {
                0
            },
        };
        self.clients.add_attached(client, number, id);
        self.clients.send(client, number, &attached);
        Ok(())
    }

    /// Returns where a client that attaches has a stream, with the descriptor that came with the request.
    fn given(&mut self, client: ClientId, place: Place) -> Result<Given, Failure> {
        let invalid = |message: &str| Failure::new(Kind::Invalid, message);
        match place {
            Place::Null => Ok(Given::Nothing),
            Place::Frames => Ok(Given::Frames),
            Place::Descriptor => {
                let client = self.clients.get_mut(client);
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
        let commands = self.commands.values();
        let noted = commands.filter(|command| !command.note.is_empty());
        let mut list: Vec<_> = noted
            .filter_map(|command| {
                Some(Reply::Command {
                    pid: command.running_pid()?,
                    tty: command.has_tty,
                    note: command.note.clone(),
                })
            })
            .collect();
        list.push(Reply::Listed);
        for reply in list {
            self.clients.send(client, number, &reply);
        }
    }

    /// Lets more of an output be sent to a client that is attached.
    pub(super) fn credit_copy(
        &mut self,
        client: ClientId,
        number: u32,
        stream: OutputStream,
        bytes: u32,
    ) {
        let Some(id) = self.clients.attached_by(client, number) else {
            return;
        };
        let Some(command) = self.commands.get_mut(id) else {
            return;
        };
        let copies = &mut command.output(stream).copies;
        if copies.grant((client, number), bytes).is_err() {
            return self.client_gone(client);
        }
        self.write_copies(id, stream);
    }

    /// Detaches a client from a command that it is attached to.
    pub(super) fn leave_attached(&mut self, id: u32, us: (ClientId, u32)) {
        self.clients.remove_attached(us.0, us.1);
        let Some(command) = self.commands.get_mut(id) else {
            return;
        };
        // What the descriptor of a client that has ended the stdin still has is read first.
        let input = InputOf {
            client: us,
            ends: false,
        };
        if command.input_of == Some(input) {
            command.input_of = None;
            if !matches!(command.stdin, Input::Closed) {
                command.stdin = Input::Idle;
            }
        }
        let is_running = command.status().is_none();
        for stream in OUTPUTS {
            let output = command.output(stream);
            output.copies.remove(us);
            let credit = output.handed_on(0).filter(|_| is_running);
            self.guest.credit(id, stream, credit);
        }
        self.complete(id);
    }

    /// Detaches a command from its client: it continues with an idle stdin. The output of the one
    /// with the sandbox's lifetime goes to the log.
    pub(super) fn leave(&mut self, id: u32) {
        let Some(command) = self.commands.get_mut(id) else {
            return;
        };
        if let Some((client, number)) = command.take_client() {
            self.clients.remove_command(client, number);
        }
        let is_theirs = command.input_of.is_none();
        if is_theirs && matches!(command.stdin, Input::Frames | Input::Descriptor(_)) {
            command.stdin = Input::Idle;
        }
        let (lifetime, is_running) = (command.lifetime, command.status().is_none());
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
                    registrar.log(log_stream(stream), &held);
                }
            }
            self.guest.credit(id, stream, credit);
        }
        self.complete(id);
    }
}
