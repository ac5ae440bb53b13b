//! Ends a sandbox: from the request to the end of its machine.

use std::time::{Duration, Instant};

use micabox_wire::ToGuest;

use super::client::ClientId;
use super::clients::CREATOR;
use super::command::Time;
use super::end::{Phase, Step, exit_code};
use super::events::Event;
use super::freezer::FreezeRequest;
use super::work::SHUTDOWN_TIMEOUT;
use super::{Outcome, Owner};
use crate::Lost;
use crate::protocol::{Failure, Kind, Reply};

/// Exit code after a command's timeout, as coreutils' `timeout` has it.
const EXIT_TIMEOUT: u8 = 124;

impl Owner {
    /// Ends the sandbox: the first command gets its stop signal and, after `grace`, SIGKILL.
    pub(super) fn begin_end(&mut self, grace: Option<Duration>) {
        if let Some(grace) = grace {
            self.end.bound(grace);
        }
        if self.end.has_begun() {
            return;
        }
        self.give_up_freezes();
        // No client claims it any more.
        if let Some(id) = self.commands.awaited() {
            self.release(id, true);
        }
        let first = self.commands.living_first();
        match first.filter(|first| first.started.is_some()) {
            Some(first) => {
                self.end.ask(grace.unwrap_or_default());
                self.signal_alone(first.id, self.sandbox.stop_signal);
            }
            None => self.shut_down_guest(),
        }
    }

    /// Ends the sandbox after the command with its lifetime has ended, or could not start. The
    /// guest shuts down if the sandbox has a disk, or a network that may not have sent everything
    /// yet; otherwise there is nothing to lose, and the machine is killed.
    ///
    /// A sandbox that holds nothing is over for its creator and for other processes at once: the
    /// kernel needs time to take a machine apart.
    pub(super) fn finish(&mut self) {
        self.give_up_freezes();
        if self.sandbox.holds_nothing {
            let failure = self.end.failure.clone();
            self.record(failure, false);
            // Before the kill, which keeps this processor's kernel busy.
            self.flush();
        }
        self.saving.learn(&*self.machine);
        if self.end.is_killed || (self.sandbox.disk.is_none() && self.network.is_none()) {
            self.die();
        } else {
            self.shut_down_guest();
        }
    }

    fn shut_down_guest(&mut self) {
        if matches!(
            self.end.phase,
            Phase::ShuttingDown | Phase::Dying | Phase::Over
        ) {
            return;
        }
        self.guest.send(ToGuest::Shutdown);
        let (pid, disk) = (self.machine.pid(), self.sandbox.disk.as_deref());
        self.end.watch(Phase::ShuttingDown, pid, disk);
    }

    /// Handles the guest's report that it has shut down.
    pub(super) fn shut_down(&mut self, problem: Option<String>) {
        self.end.is_saved = problem.is_none();
        self.end.result = Some(match problem {
            None => Ok(None),
            Some(problem) => Err(Lost::unflushed(problem)),
        });
        self.die();
    }

    pub(super) fn check_end(&mut self) {
        if self.end.deadline().is_none() {
            return;
        }
        match self
            .end
            .look(self.machine.is_stalled(), self.sandbox.disk.is_some())
        {
            Step::Wait => {}
            Step::Kill => self.kill_first(),
            Step::Die => self.die(),
        }
    }

    /// Kills the first command with SIGKILL. Even if the command does not end then, the guest may
    /// still be able to shut down.
    fn kill_first(&mut self) {
        if let Some(first) = self.commands.first {
            self.signal_alone(first.id, libc::SIGKILL);
        }
        let (pid, disk) = (self.machine.pid(), self.sandbox.disk.as_deref());
        self.end.watch(Phase::Killed, pid, disk);
    }

    /// Begins the end because nothing reads the output of the command with the sandbox's lifetime.
    pub(super) fn unseen(&mut self, id: u32) {
        if self.end.is_unseen || !self.commands.runs(id) {
            return;
        }
        self.end.is_unseen = true;
        // With a disk there may be data to save: only the command is killed.
        if self.sandbox.disk.is_some() {
            self.end.bound(Duration::ZERO);
            self.kill_first();
        } else {
            self.machine.kill();
        }
    }

    /// Handles a command's timeout: its stop signal, then SIGKILL.
    pub(super) fn time_is_over(&mut self, id: u32) {
        let Some(command) = self.commands.get_mut(id) else {
            return;
        };
        let grace = command.grace;
        match command.time {
            Time::Unlimited => {}
            Time::Limited { .. } if command.lifetime => {
                command.time = Time::Unlimited;
                self.end.timed_out |= !self.end.has_begun();
                self.begin_end(Some(grace));
            }
            Time::Limited { .. } => {
                let until = Instant::now().checked_add(grace);
                command.time = Time::Over { until };
                self.signal(id, self.sandbox.stop_signal);
            }
            Time::Over { .. } => {
                command.time = Time::Unlimited;
                self.signal(id, libc::SIGKILL);
            }
        }
    }

    /// Completes a command if it has ended and its output has been written.
    pub(super) fn complete(&mut self, id: u32) {
        let Some(command) = self.commands.get_mut(id) else {
            return;
        };
        let Some(status) = command.status() else {
            return;
        };
        if self.end.is_unseen || self.end.is_killed {
            // The rest of the output has no reader.
            command.drop_output();
        }
        if !command.is_written() || command.is_awaited() {
            return;
        }
        let (lifetime, measure) = (command.lifetime, command.measure);
        let (client, attached) = (command.client(), command.attached());
        let timed_out = matches!(command.time, Time::Over { .. });
        let is_noted = command.is_noted;
        let unwritten = command.unwritten.take();
        // Descriptors are closed before the clients are notified.
        self.commands.remove(id);
        if is_noted {
            let code = status.code().to_string();
            self.note("exec_die", &[("exec", id.to_string()), ("exit_code", code)]);
        }
        if let Some((client, number)) = client {
            let exited = Reply::Exited {
                status,
                timed_out,
                unwritten,
                info: measure.then(|| self.info()),
            };
            self.clients.send(client, number, &exited);
            self.clients.remove_command(client, number);
        }
        for (client, number) in attached {
            let exited = Reply::Exited {
                status,
                timed_out: false,
                unwritten: None,
                info: None,
            };
            self.clients.send(client, number, &exited);
            self.clients.remove_attached(client, number);
        }
        let is_asked = matches!(self.end.phase, Phase::Asked { .. });
        if lifetime {
            match status.code() {
                _ if self.end.is_unseen => self.end.was_unseen(),
                _ if self.end.timed_out && is_asked => self.end.code = Some(EXIT_TIMEOUT),
                code => self.end.code = Some(u8::try_from(code).unwrap_or(u8::MAX)),
            }
            self.finish();
        } else if self.commands.first.is_some_and(|first| first.id == id)
            && matches!(self.end.phase, Phase::Asked { .. } | Phase::Killed)
        {
            self.shut_down_guest();
        }
    }

    /// Handles the loss of the guest.
    pub(super) fn lose(&mut self, lost: Lost) {
        if self.guest.lost.is_some() || self.end.phase == Phase::Over {
            return;
        }
        // Whoever stopped the start has killed the machine as well, which looks like a fault.
        let stopped = self
            .guest
            .up
            .is_none()
            .then(|| Lost::stopped(&self.sandbox.directory));
        let lost = stopped.flatten().unwrap_or(lost);
        self.guest.lost = Some(lost.clone());
        self.guest.up_deadline = None;
        if self.guest.up.is_none() {
            let failure = Failure::from(lost.clone());
            self.clients.send(CREATOR, 0, &Reply::Failed(failure));
        }
        let had_begun = self.end.has_begun() || self.end.is_killed;
        if self.commands.values().any(|command| command.lifetime) && self.end.code.is_none() {
            if self.end.is_unseen {
                self.end.was_unseen();
            } else if had_begun {
                self.end.code = Some(exit_code(libc::SIGKILL));
            } else {
                self.end.failure = Some(lost.clone().into());
            }
        }
        self.end.result.get_or_insert(Err(lost));
        self.give_up_freezes();
        self.die();
    }

    /// Kills the machine, and notifies the clients of all commands.
    pub(super) fn die(&mut self) {
        if matches!(self.end.phase, Phase::Dying | Phase::Over) {
            return;
        }
        self.end.phase = Phase::Dying;
        self.guest.is_linked = false;
        self.stall.stop();
        let lost = self.guest.lost.clone().unwrap_or_else(Lost::closed);
        for command in self.commands.take() {
            for (client, number) in command.attached().into_iter().chain(command.client()) {
                self.clients
                    .send(client, number, &Reply::Failed(lost.clone().into()));
            }
        }
        self.machine.kill();
        self.events.in_a_thread(&self.machine, |machine| {
            Event::Gone(machine.wait(SHUTDOWN_TIMEOUT).is_some())
        });
    }

    /// Concludes the end once the machine is gone: records the result, and then notifies clients.
    pub(super) fn conclude(&mut self, is_gone: bool) {
        self.end.phase = Phase::Over;
        if let Some(request) = self.saving.freezer.end() {
            self.fail_freeze(&request);
        }
        let result = self.end.conclude(self.sandbox.disk.is_some());
        let failure = self.end.failure.clone().or_else(|| {
            // Lost files matter more than how the command ended.
            result.as_ref().err().map(|lost| lost.clone().into())
        });
        self.record(failure, !is_gone);
        let stopped = match &result {
            Ok(killed) => Reply::Stopped {
                killed: killed.clone(),
            },
            Err(lost) => Reply::Failed(lost.clone().into()),
        };
        for (client, number) in std::mem::take(&mut self.end.waiting) {
            self.clients.send(client, number, &stopped);
        }
    }

    /// Records the sandbox's end and notifies the creator, once.
    fn record(&mut self, failure: Option<Failure>, disk_is_in_use: bool) {
        let Some(mut registrar) = self.registrar.take() else {
            return;
        };
        let code = self.end.code;
        registrar.ended(&Outcome {
            code,
            failure: failure.as_ref(),
            is_abandoned: self.end.is_abandoned,
            disk_is_in_use,
        });
        // Clients that find the socket without its lock would wait for replies.
        self.entrance.close();
        drop(registrar);
        let watching = std::mem::take(&mut self.end.watching);
        for (client, number) in watching.into_iter().chain([(CREATOR, 0)]) {
            let failure = failure.clone();
            self.clients
                .send(client, number, &Reply::Ended { code, failure });
        }
    }

    /// Handles a client's request for the exit code.
    pub(super) fn watch(&mut self, client: ClientId, number: u32) {
        if self.registrar.is_some() {
            self.end.watching.push((client, number));
            return;
        }
        let (code, failure) = (self.end.code, self.end.failure.clone());
        self.clients
            .send(client, number, &Reply::Ended { code, failure });
    }

    fn give_up_freezes(&mut self) {
        for request in self.saving.freezer.give_up() {
            self.fail_freeze(&request);
        }
    }

    /// Notifies a client that requested a freeze that the sandbox ends.
    fn fail_freeze(&mut self, request: &FreezeRequest) {
        let failure = Failure::new(Kind::Ending, "the sandbox is about to end");
        self.clients
            .send(request.client, request.number, &Reply::Failed(failure));
    }

    /// Notes what happens to the sandbox, for readers of its events.
    pub(super) fn note(&mut self, action: &str, attributes: &[(&str, String)]) {
        if let Some(registrar) = &mut self.registrar {
            registrar.event(action, attributes);
        }
    }
}
