//! Ends a sandbox: from the request to the end of its machine.

use std::time::{Duration, Instant};

use micabox_vmm::Memory;
use micabox_wire::{OutputStream, ToGuest};

use super::client::ClientId;
use super::end::{Phase, Step};
use super::freezer::FreezeRequest;
use super::work::SHUTDOWN_TIMEOUT;
use super::{Event, Outcome, Owner};
use crate::Lost;
use crate::protocol::{Failure, Info, Kind, Reply, Stats};

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
        if let Some(id) = self.unclaimed.take() {
            self.release(id, true);
        }
        match self
            .first
            .filter(|first| first.started.is_some() && !first.has_ended)
        {
            Some(first) => {
                self.end.ask(grace.unwrap_or_default());
                self.signal_alone(first.id, self.stop_signal);
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
        if self.holds_nothing {
            let failure = self.end.failure.clone();
            self.record(failure, false);
            // Before the kill, which keeps this processor's kernel busy.
            self.flush();
        }
        if let Some(learn) = self.learn.take() {
            learn(&*self.machine);
        }
        if self.end.is_killed || (self.disk.is_none() && self.network.is_none()) {
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
        self.link.outbox.push(ToGuest::Shutdown);
        let (pid, disk) = (self.machine.pid(), self.disk.as_deref());
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
            .look(self.machine.is_stalled(), self.disk.is_some())
        {
            Step::Wait => {}
            Step::Kill => self.kill_first(),
            Step::Die => self.die(),
        }
    }

    /// Kills the first command with SIGKILL. Even if the command does not end then, the guest may
    /// still be able to shut down.
    fn kill_first(&mut self) {
        if let Some(first) = self.first {
            self.signal_alone(first.id, libc::SIGKILL);
        }
        let (pid, disk) = (self.machine.pid(), self.disk.as_deref());
        self.end.watch(Phase::Killed, pid, disk);
    }

    /// Begins the end because nothing reads the output of the command with the sandbox's lifetime.
    pub(super) fn unseen(&mut self, id: u32) {
        if self.end.is_unseen || self.commands.get(&id).is_none_or(|command| !command.runs()) {
            return;
        }
        self.end.is_unseen = true;
        // With a disk there may be data to save: only the command is killed.
        if self.disk.is_some() {
            self.end.bound(Duration::ZERO);
            self.kill_first();
        } else {
            self.machine.kill();
        }
    }

    /// Handles a command's timeout: its stop signal, then SIGKILL.
    pub(super) fn time_is_over(&mut self, id: u32) {
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        let (lifetime, grace) = (command.lifetime, command.grace);
        let has_signal = command.timeout.take().is_none();
        command.deadline = if has_signal || lifetime {
            None
        } else {
            Instant::now().checked_add(grace)
        };
        if lifetime {
            self.end.timed_out |= !self.end.has_begun();
            self.begin_end(Some(grace));
        } else if has_signal {
            command.timed_out = false;
            self.signal(id, libc::SIGKILL);
        } else {
            command.timed_out = true;
            self.signal(id, self.stop_signal);
        }
    }

    /// Completes a command if it has ended and its output has been written.
    pub(super) fn complete(&mut self, id: u32) {
        let Some(command) = self.commands.get_mut(&id) else {
            return;
        };
        let Some(status) = command.exit else {
            return;
        };
        if self.end.is_unseen || self.end.is_killed {
            // The rest of the output has no reader.
            command.drop_output();
        }
        if !command.is_written() || self.unclaimed == Some(id) {
            return;
        }
        let (lifetime, measure) = (command.lifetime, command.measure);
        let (client, attached) = (command.client, command.attached());
        let (timed_out, is_noted) = (command.timed_out, command.is_noted);
        let unwritten = command.unwritten.take();
        // Descriptors are closed before the clients are notified.
        self.commands.remove(&id);
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
            self.send(client, number, &exited);
            if let Some(client) = self.clients.get_mut(&client) {
                client.commands.remove(&number);
            }
        }
        for (client, number) in attached {
            let exited = Reply::Exited {
                status,
                timed_out: false,
                unwritten: None,
                info: None,
            };
            self.send(client, number, &exited);
            if let Some(client) = self.clients.get_mut(&client) {
                client.attached.remove(&number);
            }
        }
        let is_asked = matches!(self.end.phase, Phase::Asked { .. });
        if lifetime {
            match status.code() {
                _ if self.end.is_unseen => self.end.was_unseen(),
                _ if self.end.timed_out && is_asked => self.end.code = Some(EXIT_TIMEOUT),
                code => self.end.code = Some(u8::try_from(code).unwrap_or(u8::MAX)),
            }
            self.finish();
        } else if self.first.is_some_and(|first| first.id == id)
            && matches!(self.end.phase, Phase::Asked { .. } | Phase::Killed)
        {
            self.shut_down_guest();
        }
    }

    /// Handles the loss of the guest.
    pub(super) fn lose(&mut self, lost: Lost) {
        if self.lost.is_some() || self.end.phase == Phase::Over {
            return;
        }
        // Whoever stopped the start has killed the machine as well, which looks like a fault.
        let stopped = self.up.is_none().then(|| Lost::stopped(&self.directory));
        let lost = stopped.flatten().unwrap_or(lost);
        self.lost = Some(lost.clone());
        self.up_deadline = None;
        if self.up.is_none() {
            let failure = Failure::from(lost.clone());
            self.send(self.creator, 0, &Reply::Failed(failure));
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
        self.is_linked = false;
        self.next_stall_look = None;
        let lost = self.lost.clone().unwrap_or_else(Lost::closed);
        for command in std::mem::take(&mut self.commands).into_values() {
            for (client, number) in command.attached().into_iter().chain(command.client) {
                self.send(client, number, &Reply::Failed(lost.clone().into()));
            }
        }
        self.machine.kill();
        self.in_a_thread(|machine| Event::Gone(machine.wait(SHUTDOWN_TIMEOUT).is_some()));
    }

    /// Concludes the end once the machine is gone: records the result, and then notifies clients.
    pub(super) fn conclude(&mut self, is_gone: bool) {
        self.end.phase = Phase::Over;
        if let Some(request) = self.freezer.end() {
            self.fail_freeze(&request);
        }
        let result = self.end.conclude(self.disk.is_some());
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
            self.send(client, number, &stopped);
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
        drop(self.listener.take());
        drop(registrar);
        let watching = std::mem::take(&mut self.end.watching);
        for (client, number) in watching.into_iter().chain([(self.creator, 0)]) {
            let failure = failure.clone();
            self.send(client, number, &Reply::Ended { code, failure });
        }
    }

    /// Handles a client's request for the exit code.
    pub(super) fn watch(&mut self, client: ClientId, number: u32) {
        if self.registrar.is_some() {
            self.end.watching.push((client, number));
            return;
        }
        let (code, failure) = (self.end.code, self.end.failure.clone());
        self.send(client, number, &Reply::Ended { code, failure });
    }

    fn give_up_freezes(&mut self) {
        for request in self.freezer.give_up() {
            self.fail_freeze(&request);
        }
    }

    /// Notifies a client that requested a freeze that the sandbox ends.
    fn fail_freeze(&mut self, request: &FreezeRequest) {
        let failure = Failure::new(Kind::Ending, "the sandbox is about to end");
        self.send(request.client, request.number, &Reply::Failed(failure));
    }

    /// Sends a command a signal: its process group, as coreutils' `timeout` does. As with Docker, the
    /// command with the sandbox's lifetime is sent it alone, and the rest ends with the sandbox.
    pub(super) fn signal(&mut self, id: u32, signal: i32) {
        self.expect_end(id, signal);
        match self.commands.get(&id).filter(|command| command.runs()) {
            Some(command) if command.lifetime => self.signal_alone(id, signal),
            Some(_) => self.link.outbox.push(ToGuest::SignalGroup { id, signal }),
            None => {}
        }
    }

    /// Sends a command's process a signal, and not its group.
    pub(super) fn signal_alone(&mut self, id: u32, signal: i32) {
        self.expect_end(id, signal);
        if self.commands.get(&id).is_some_and(|command| command.runs()) {
            self.link.outbox.push(ToGuest::Signal { id, signal });
        }
    }

    /// Lets a command that is killed end, whether its client takes its output or not.
    fn expect_end(&mut self, id: u32, signal: i32) {
        if signal == libc::SIGKILL
            && let Some(command) = self.commands.get_mut(&id)
        {
            command.is_killed = true;
            self.drop_of_killed(id);
        }
    }

    /// Drops the output of a command that was killed which its client has granted no bytes for.
    pub(super) fn drop_of_killed(&mut self, id: u32) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let command = self.commands.get_mut(&id);
            if let Some(command) = command.filter(|command| command.is_killed) {
                let credit = command.output(stream).discard_unless_granted();
                self.link.outbox.credit(id, stream, credit);
            }
        }
    }

    /// Notes what happens to the sandbox, for readers of its events.
    pub(super) fn note(&mut self, action: &str, attributes: &[(&str, String)]) {
        if let Some(registrar) = &mut self.registrar {
            registrar.event(action, attributes);
        }
    }

    /// Returns what the sandbox uses.
    pub(super) fn stats(&self) -> Stats {
        const MICROS_PER_TICK: u64 = 10_000;
        let pid = self.machine.pid();
        let used = crate::process::resources(pid);
        let traffic = self.network.as_ref().map(|network| network.traffic());
        let ticks = crate::process::processor_time(pid).unwrap_or(0);
        let memory = match self.machine.memory() {
            Memory::OfProcesses => Some((used.own, used.shared)),
            Memory::Counted { own, shared } => Some((own, shared)),
            Memory::Unknown => None,
        };
        Stats {
            processor_time: ticks.saturating_mul(MICROS_PER_TICK),
            own_memory: memory.map(|(own, _)| own),
            shared_memory: memory.map(|(_, shared)| shared),
            memory_limited: self.machine.has_memory_limit(),
            processors_limited: self.machine.has_processor_limit(),
            disk_read: used.disk.map(|(read, _)| read),
            disk_written: used.disk.map(|(_, written)| written),
            network_received: traffic.map(|(received, _)| received),
            network_sent: traffic.map(|(_, sent)| sent),
        }
    }

    /// Returns information about the sandbox.
    pub(super) fn info(&self) -> Info {
        let micros = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
        };
        let hello = self.hello.as_ref();
        let up = self.up.as_ref();
        let started = self.first.and_then(|first| first.started);
        let output = self.first.and_then(|first| first.first_output);
        Info {
            stalled: self.machine.is_stalled(),
            ending: self.end.has_begun(),
            stop_signal: self.stop_signal,
            own_memory: match self.machine.memory() {
                Memory::OfProcesses => crate::process::private_memory(self.machine.pid()),
                Memory::Counted { own, .. } => Some(own),
                Memory::Unknown => None,
            },
            hello: hello.map(|(at, _)| micros(self.begun, *at)),
            kernel: hello.map_or(0, |(_, hello)| hello.init_uptime_us),
            ready: up.map_or(0, |(at, _)| micros(self.begun, *at)),
            phases: up.map(|(_, phases)| phases.clone()).unwrap_or_default(),
            exec: up
                .zip(started)
                .map(|((up, _), started)| micros(*up, started)),
            first_output: started.zip(output).map(|(from, to)| micros(from, to)),
        }
    }
}

pub(super) fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
