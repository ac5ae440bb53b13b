//! Requests to start commands.

use std::time::Instant;

use micabox_wire::{Confinement, OutputStream, ToGuest};

use super::Owner;
use super::client::ClientId;
use super::command::{Command, Input, Streams};
use super::output::{Sink, output_window};
use crate::descriptor::{Descriptor, Way};
use crate::protocol::{Exec, Failure, Kind, MAX_NOTE, Place, Text};

impl Owner {
    /// Handles a client's request to start a command.
    pub(super) fn exec(
        &mut self,
        client: ClientId,
        number: u32,
        exec: &Exec,
    ) -> Result<(), Failure> {
        let streams = self.streams(client, exec)?;
        self.check_new(client, number)?;
        if exec.argv.is_empty() {
            return Err(Failure::new(Kind::Invalid, "no program to run"));
        }
        if exec.note.len() > MAX_NOTE {
            let message = format!("the note is longer than {MAX_NOTE} bytes");
            return Err(Failure::new(Kind::Invalid, message));
        }
        let id = self.commands.new_id();
        // The agent's own programs execute nothing of the sandbox's: as `docker cp`, they may what root may.
        let is_agents = exec
            .argv
            .first()
            .is_some_and(|name| name.0.first() == Some(&0));
        let confinement = if is_agents {
            exec.confinement.of(&Confinement::default())
        } else {
            exec.confinement.of(&self.sandbox.confinement)
        };
        let spec = micabox_wire::Exec {
            argv: exec.argv.iter().map(|text| text.0.clone()).collect(),
            fallback: exec.fallback.0.clone(),
            env: exec
                .env
                .iter()
                .map(|(name, value)| (name.0.clone(), value.0.clone()))
                .collect(),
            cwd: exec.workdir.0.clone(),
            make_cwd: exec.make_workdir,
            user: exec.user.clone(),
            tty: exec.tty,
            stdin: !matches!(streams.stdin, Input::Closed),
            output_window: output_window(exec.window),
            confinement,
        };
        let request = ToGuest::Exec {
            id,
            spec: Box::new(spec),
        };
        if request.check_length().is_err() {
            let message = "arguments and environment are too long";
            return Err(Failure::new(Kind::TooLong, message));
        }
        self.guest.send(request);
        let mut command = Command::new((client, number), exec, streams);
        command.answer_by = Instant::now().checked_add(self.guest.patience);
        if !exec.lifetime && !is_agents {
            command.is_noted = true;
            self.note(
                "exec",
                &[("exec", id.to_string()), ("command", shown(&exec.argv))],
            );
        }
        self.commands.insert(id, command);
        self.clients.add_command(client, number, id);
        Ok(())
    }

    /// Handles a client's request to reattach the first command, in a copy of the machine.
    pub(super) fn reattach(
        &mut self,
        client: ClientId,
        number: u32,
        exec: &Exec,
    ) -> Result<(), Failure> {
        let streams = self.streams(client, exec)?;
        self.check_new(client, number)?;
        let nothing = || Failure::new(Kind::Invalid, "nothing runs in the sandbox");
        let id = self.commands.awaited().ok_or_else(nothing)?;
        let command = self.commands.get_mut(id).ok_or_else(nothing)?;
        let held = [
            (OutputStream::Stdout, command.stdout.take_held()),
            (OutputStream::Stderr, command.stderr.take_held()),
        ];
        command.claim((client, number), exec, streams);
        self.clients.add_command(client, number, id);
        self.started(id);
        for (stream, held) in held {
            self.pass_on(id, stream, &held);
        }
        self.complete(id);
        Ok(())
    }

    /// Checks that a client can have a new command with this number.
    pub(super) fn check_new(&self, client: ClientId, number: u32) -> Result<(), Failure> {
        if self.clients.command_of(client, number).is_some() {
            let message = format!("request {number} is a command that runs");
            return Err(Failure::new(Kind::Invalid, message));
        }
        if let Some(lost) = &self.guest.lost {
            return Err(lost.clone().into());
        }
        if self.end.has_begun() {
            return Err(Failure::new(Kind::Ending, "the sandbox is about to end"));
        }
        if self.guest.up.is_none() {
            return Err(Failure::new(Kind::Invalid, "the sandbox is not ready yet"));
        }
        self.saving.check_not_paused()
    }

    /// Returns where the streams of a command go, with the descriptors that came with the request.
    fn streams(&mut self, client: ClientId, exec: &Exec) -> Result<Streams, Failure> {
        let missing = || Failure::new(Kind::Invalid, "a descriptor is missing");
        let client = self.clients.get_mut(client).ok_or_else(missing)?;
        let mut next = || client.descriptors.pop_front().ok_or_else(missing);
        let stdin = match exec.stdin {
            Place::Null => Input::Closed,
            Place::Frames => Input::Frames,
            Place::Idle => Input::Idle,
            Place::Descriptor => Input::Descriptor(Descriptor::new(next()?, Way::In)),
            Place::Log => return Err(Failure::new(Kind::Invalid, "stdin can't come from the log")),
        };
        let mut sink = |place| -> Result<Sink, Failure> {
            Ok(match place {
                Place::Null | Place::Idle => Sink::Discard,
                Place::Frames => Sink::Frames,
                Place::Log => Sink::Log,
                Place::Descriptor => Sink::Descriptor(Descriptor::new(next()?, Way::Out)),
            })
        };
        Ok(Streams {
            stdin,
            stdout: sink(exec.stdout)?,
            stderr: sink(exec.stderr)?,
        })
    }
}

/// Shows the beginning of a command.
fn shown(argv: &[Text]) -> String {
    const MOST: usize = 256;
    let mut text = String::new();
    for word in argv {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&String::from_utf8_lossy(
            word.0.get(..MOST).unwrap_or(&word.0),
        ));
        if text.len() > MOST {
            return text.chars().take(MOST).chain(['…']).collect();
        }
    }
    text
}
