//! Clients that attach to the first command, and those that leave theirs running.

use std::os::fd::OwnedFd;

use micabox_wire::OutputStream;

use super::Owner;
use super::client::ClientId;
use super::command::{Input, Sink};
use crate::descriptor::{Descriptor, Way};
use crate::protocol::{Failure, Kind, Place, Reply};

const OUTPUTS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];

impl Owner {
    /// Attaches a client to the first command: its outputs are copied to the client's descriptors,
    /// and its stdin comes from the client's if it is open and idle.
    pub(super) fn attach(
        &mut self,
        client: ClientId,
        number: u32,
        stdin: Place,
        outputs: [Place; 2],
    ) -> Result<(), Failure> {
        let stdin = self.handed_over(client, stdin)?;
        let [stdout, stderr] = outputs.map(|place| self.handed_over(client, place));
        let outputs = [stdout?, stderr?];
        self.check_new(client, number)?;
        let us = (client, number);
        let (id, pid) = self.running_first()?;
        let nothing = || Failure::new(Kind::Invalid, NOTHING_RUNS);
        let command = self.commands.get_mut(&id).ok_or_else(nothing)?;
        if let Some(stdin) = stdin {
            if command.input_of.is_some() {
                let message = "another client is attached to the command's stdin";
                return Err(Failure::new(Kind::Invalid, message));
            }
            if matches!(command.stdin, Input::Idle) {
                command.stdin = Input::Descriptor(Descriptor::new(stdin, Way::In));
                command.input_of = Some(us);
            }
        }
        // A copy that is dropped tells when the command has ended.
        let null = || std::fs::OpenOptions::new().write(true).open("/dev/null");
        for (stream, descriptor) in OUTPUTS.into_iter().zip(outputs) {
            let descriptor = match descriptor {
                Some(descriptor) => descriptor,
                None => null()
                    .map_err(|error| Failure::new(Kind::Invalid, error.to_string()))?
                    .into(),
            };
            let descriptor = Descriptor::new(descriptor, Way::Out);
            command.output(stream).copy_to(us, descriptor);
        }
        let tty = command.has_tty;
        if let Some(client) = self.clients.get_mut(&client) {
            client.attached.insert(number, id);
        }
        self.send(client, number, &Reply::Attached { pid, tty });
        Ok(())
    }

    /// Returns the descriptor that came with a request for a stream; none for `/dev/null`.
    fn handed_over(&mut self, client: ClientId, place: Place) -> Result<Option<OwnedFd>, Failure> {
        let invalid = |message: &str| Failure::new(Kind::Invalid, message);
        match place {
            Place::Null => Ok(None),
            Place::Descriptor => {
                let client = self.clients.get_mut(&client);
                let descriptor = client.and_then(|client| client.descriptors.pop_front());
                descriptor
                    .map(Some)
                    .ok_or_else(|| invalid("a descriptor is missing"))
            }
            Place::Frames | Place::Idle | Place::Log => {
                Err(invalid("streams of `attach` are `null` or `descriptor`"))
            }
        }
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
        self.signal(id, signal);
        self.note("kill", &[("signal", signal.to_string())]);
        // As with Docker: a command that is to end can't while the sandbox is paused. Other signals
        // arrive when it is resumed.
        if [libc::SIGKILL, self.stop_signal].contains(&signal) {
            self.resume();
        }
        self.send(client, number, &Reply::Signaled);
        Ok(())
    }

    /// Detaches a client from the first command.
    pub(super) fn leave_first(&mut self, id: u32, us: (ClientId, u32)) {
        if let Some(client) = self.clients.get_mut(&us.0) {
            client.attached.remove(&us.1);
        }
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        if command.input_of == Some(us) {
            command.input_of = None;
            command.stdin = Input::Idle;
        }
        let is_running = command.exit.is_none();
        for stream in OUTPUTS {
            let credit = command.output(stream).remove_copy(us);
            let credit = credit.filter(|_| is_running);
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
        if matches!(command.stdin, Input::Frames | Input::Descriptor(_)) {
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
