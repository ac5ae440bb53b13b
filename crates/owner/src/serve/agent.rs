//! Handles messages from the agent. The guest is hostile: nothing that it sends makes the owner
//! hold more than windows allow, and a violation of the protocol ends the machine.

use std::time::Instant;

use micabox_wire::{ExitStatus, MAX_DATA, OutputStream, Phase, SendWindow, StartFailed, ToHost};

use super::Owner;
use super::clients::CREATOR;
use super::command::{Input, Kill, Stage};
use crate::Lost;
use crate::protocol::{Failure, Kind, Reply, Up};
use crate::socket::Listener;

/// Most bytes of stdin that a guest may take at once: so many are kept for it.
const MAX_STDIN_WINDOW: usize = 1 << 20;

impl Owner {
    /// Handles a message from the guest.
    ///
    /// # Errors
    /// How the message violates the protocol, for the user. So do the methods for its kinds.
    pub(super) fn handle(&mut self, message: ToHost) -> Result<(), String> {
        let now = Instant::now();
        match message {
            ToHost::Hello(hello) => self.guest.greeted(now, hello)?,
            ToHost::Booted(timings) => {
                self.guest.check_booted()?;
                self.up(now, timings.phases);
            }
            ToHost::BootFailed(failure) => {
                self.guest.check_boot_failed()?;
                self.lose(Lost::boot_failed(&failure));
            }
            ToHost::Restored => {
                self.guest.check_restored()?;
                self.up(now, Vec::new());
            }
            ToHost::Started {
                id,
                pid,
                stdin_window,
            } => self.command_started(now, id, pid, stdin_window)?,
            ToHost::StartFailed { id, failure } => self.start_failed(id, failure)?,
            ToHost::Output { id, stream, data } => self.output(now, id, stream, &data)?,
            ToHost::Exited { id, status } => self.exited(id, status)?,
            ToHost::StdinCredit { id, bytes } => self.stdin_credit(id, bytes)?,
            ToHost::StdinClosed { id } => self.stdin_closed(id)?,
            ToHost::Quiesced => {
                if self.saving.freezer.is_quiescing() {
                    let notifier = &self.events.notifier;
                    self.saving.freezer.freeze(&self.machine, notifier);
                }
            }
            ToHost::ShutdownDone { problem } => self.shut_down(problem),
        }
        Ok(())
    }

    fn command_started(
        &mut self,
        now: Instant,
        id: u32,
        pid: u32,
        stdin_window: u32,
    ) -> Result<(), String> {
        if stdin_window as usize > MAX_STDIN_WINDOW {
            return Err(format!(
                "the guest takes {stdin_window} bytes of stdin at once"
            ));
        }
        let command = self.commands.starting(id)?;
        command.stage = Stage::Running { pid };
        command.stdin_window = SendWindow::new(stdin_window);
        if command.kill == Kill::Abandoned {
            self.signal(id, libc::SIGKILL);
        }
        if let Some(first) = self.commands.first_with(id) {
            first.started = Some(now);
        }
        self.started(id);
        Ok(())
    }

    fn start_failed(&mut self, id: u32, failure: StartFailed) -> Result<(), String> {
        self.commands.starting(id)?.stage = Stage::Failed(failure);
        self.guest.link.outbox.forget(id);
        if let Some(first) = self.commands.first_with(id) {
            first.has_ended = true;
        }
        self.started(id);
        Ok(())
    }

    fn output(
        &mut self,
        now: Instant,
        id: u32,
        stream: OutputStream,
        data: &[u8],
    ) -> Result<(), String> {
        if data.len() > MAX_DATA {
            return Err(format!("the guest sent {} bytes at once", data.len()));
        }
        let output = self.commands.running(id)?.output(stream);
        output
            .received(data.len())
            .map_err(|error| error.to_string())?;
        if let Some(first) = self.commands.first_with(id) {
            first.first_output.get_or_insert(now);
        }
        self.pass_on(id, stream, data);
        Ok(())
    }

    fn exited(&mut self, id: u32, status: ExitStatus) -> Result<(), String> {
        self.commands.running(id)?.end(status);
        self.guest.link.outbox.forget(id);
        if let Some(first) = self.commands.first_with(id) {
            first.has_ended = true;
        }
        self.complete(id);
        Ok(())
    }

    fn stdin_credit(&mut self, id: u32, bytes: u32) -> Result<(), String> {
        let command = self.commands.running(id)?;
        command
            .stdin_window
            .grant(bytes)
            .map_err(|error| error.to_string())?;
        if command.stdin_window.available() > MAX_STDIN_WINDOW {
            return Err("the guest grants more stdin than a window has".to_owned());
        }
        if let Some((client, number)) = command.typist() {
            self.clients.send(client, number, &Reply::Credit { bytes });
        }
        Ok(())
    }

    fn stdin_closed(&mut self, id: u32) -> Result<(), String> {
        let command = self.commands.running(id)?;
        command.stdin = Input::Closed;
        let attached = command.input_of.take().map(|input| input.client);
        for (client, number) in command.client().into_iter().chain(attached) {
            self.clients.send(client, number, &Reply::StdinClosed);
        }
        Ok(())
    }

    /// Gives up a command that the guest has not answered about. One that starts later is killed.
    pub(super) fn unanswered(&mut self, id: u32) {
        let Some(command) = self.commands.get_mut(id) else {
            return;
        };
        let limit = command.answer_timeout.filter(|_| command.runs());
        command.answer_timeout = None;
        let patience = match limit {
            Some(timeout) => timeout,
            // What is paused can't answer.
            None if self.saving.freezer.is_busy() => {
                command.answer_by = Instant::now().checked_add(self.guest.patience);
                return;
            }
            None => self.guest.patience,
        };
        command.answer_by = None;
        let (client, lifetime) = (command.client(), command.lifetime);
        let message = format!(
            "the guest has not answered for {} seconds",
            patience.as_secs()
        );
        let failure = Failure::new(Kind::Silent, message);
        if let Some((client, number)) = client {
            let failed = Reply::Failed(failure.clone());
            self.clients.send(client, number, &failed);
        }
        self.abandon(id);
        if lifetime {
            self.end.failure = Some(failure);
            self.finish();
        }
    }

    /// Makes the sandbox ready for commands: binds the socket and notifies the creator.
    fn up(&mut self, now: Instant, phases: Vec<Phase>) {
        let bound = Listener::bind(&self.sandbox.directory);
        // Whoever stops the start looks for the socket once more after that.
        if let Some(stopped) = Lost::stopped(&self.sandbox.directory) {
            return self.lose(stopped);
        }
        self.guest.set_up(now, phases);
        let ready = bound.and_then(|listener| {
            self.entrance.open(listener);
            let registrar = self.registrar.as_mut();
            registrar.map_or(Ok(()), |registrar| registrar.running())
        });
        if let Err(error) = ready {
            let message = format!("listening for requests: {error}");
            let failure = Failure::new(Kind::Unwritten, message);
            self.clients.send(CREATOR, 0, &Reply::Failed(failure));
            self.die();
            return;
        }
        if self.sandbox.disk.is_some() {
            self.stall.watch(now);
        }
        let directory = self.sandbox.directory.clone();
        self.clients.send(CREATOR, 0, &Reply::Up(Up { directory }));
    }

    /// Notifies the client that a command runs, or that its start failed.
    pub(super) fn started(&mut self, id: u32) {
        let Some(command) = self.commands.get_mut(id) else {
            return;
        };
        let Some((client, number)) = command.client() else {
            // A released one whose start failed is removed.
            if matches!(command.stage, Stage::Failed(_)) && !command.is_awaited() {
                self.commands.remove(id);
            }
            return;
        };
        match command.stage.clone() {
            Stage::Requested => {}
            Stage::Running { pid } | Stage::Ended { pid, .. } => {
                command.time.begin();
                let window = match command.stdin {
                    Input::Frames => command.stdin_window.available() as u32,
                    Input::Closed | Input::Idle | Input::Descriptor(_) => 0,
                };
                let started = Reply::Started { pid, window };
                self.clients.send(client, number, &started);
            }
            Stage::Failed(failure) => {
                let lifetime = command.lifetime;
                self.commands.remove(id);
                self.clients.remove_command(client, number);
                let code = u8::try_from(failure.exit_code()).ok();
                let failure = Failure::from(failure);
                let failed = Reply::Failed(failure.clone());
                self.clients.send(client, number, &failed);
                if lifetime {
                    self.end.code = code;
                    self.end.failure = Some(failure);
                    self.finish();
                }
            }
        }
    }
}
