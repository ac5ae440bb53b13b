//! Sends commands signals.

use micabox_wire::ToGuest;

use super::Owner;
use super::client::ClientId;
use super::command::Kill;
use super::output::OUTPUTS;
use crate::protocol::{Failure, Kind, Reply};

impl Owner {
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
        let (id, _) = self.commands.running_first()?;
        self.signal_alone(id, signal);
        self.note("kill", &[("signal", signal.to_string())]);
        // As with Docker: a command that is to end can't while the sandbox is paused. Other signals
        // arrive when it is resumed.
        if [libc::SIGKILL, self.sandbox.stop_signal].contains(&signal) {
            self.resume();
        }
        self.clients.send(client, number, &Reply::Signaled);
        Ok(())
    }

    /// Sends a command a signal: its process group, as coreutils' `timeout` does. As with Docker, the
    /// command with the sandbox's lifetime is sent it alone, and the rest ends with the sandbox.
    pub(super) fn signal(&mut self, id: u32, signal: i32) {
        self.expect_end(id, signal);
        match self.commands.get(id).filter(|command| command.runs()) {
            Some(command) if command.lifetime => self.signal_alone(id, signal),
            Some(_) => self.guest.send(ToGuest::SignalGroup { id, signal }),
            None => {}
        }
    }

    /// Sends a command's process a signal, and not its group.
    pub(super) fn signal_alone(&mut self, id: u32, signal: i32) {
        self.expect_end(id, signal);
        if self.commands.runs(id) {
            self.guest.send(ToGuest::Signal { id, signal });
        }
    }

    /// Lets a command that is killed end, whether its client takes its output or not, unless the client wants all of it.
    fn expect_end(&mut self, id: u32, signal: i32) {
        if signal == libc::SIGKILL
            && let Some(command) = self.commands.get_mut(id)
        {
            if command.kill == Kill::No {
                command.kill = Kill::Asked;
            }
            self.drop_of_killed(id);
        }
    }

    /// Drops the output of a command that was killed which its client has granted no bytes for.
    pub(super) fn drop_of_killed(&mut self, id: u32) {
        for stream in OUTPUTS {
            let command = self.commands.get_mut(id);
            if let Some(command) = command.filter(|command| command.drops_output()) {
                let credit = command.output(stream).discard_unless_granted();
                self.guest.credit(id, stream, credit);
            }
        }
    }
}
