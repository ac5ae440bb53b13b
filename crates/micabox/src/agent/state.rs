//! What is known of a guest and its commands, and how messages change it.

use std::collections::BTreeMap;
use std::time::Instant;

use micabox_wire::{
    ExitStatus, Hello, MAX_DATA, OutputStream, Phase, SendWindow, StartFailed, ToHost,
};

use super::outbox::Outbox;
use super::pipe::Pipe;
use crate::error::Lost;

/// Everything about one conversation.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) hello: Option<(Instant, Hello)>,
    pub(super) booted: Option<(Instant, Vec<Phase>)>,
    /// The guest rests.
    pub(super) resting: bool,
    /// The guest, a copy, is a machine of its own.
    pub(super) resumed: Option<Instant>,
    /// The guest is down; with what it could not flush.
    pub(super) shut_down: Option<Option<String>>,
    /// Why there is no more conversation.
    pub(super) lost: Option<Lost>,
    /// We end the conversation.
    pub(super) closing: bool,
    pub(super) outbox: Outbox,
    pub(super) commands: BTreeMap<u32, Entry>,
    next_id: u32,
}

/// One command.
#[derive(Debug)]
pub(super) struct Entry {
    /// The guest's answer to the request to start it: its PID, or why not.
    pub(super) start: Option<Result<u32, StartFailed>>,
    pub(super) exit: Option<ExitStatus>,
    pub(super) stdin: SendWindow,
    pub(super) stdin_closed: bool,
    stdout: Pipe,
    stderr: Pipe,
    /// Nobody holds a handle to it.
    released: bool,
    pub(super) moments: Moments,
}

/// When things happened to a command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moments {
    /// The guest reported that it runs.
    pub(crate) started: Option<Instant>,
    /// Its first byte of output arrived.
    pub(crate) first_output: Option<Instant>,
}

impl Entry {
    fn new(has_stdin: bool) -> Self {
        Self {
            start: None,
            exit: None,
            stdin: SendWindow::new(0),
            stdin_closed: !has_stdin,
            stdout: Pipe::new(),
            stderr: Pipe::new(),
            released: false,
            moments: Moments::default(),
        }
    }

    pub(super) fn output(&mut self, stream: OutputStream) -> &mut Pipe {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }

    pub(super) fn failed(&self) -> bool {
        matches!(self.start, Some(Err(_)))
    }

    fn end_output(&mut self) {
        self.stdout.end();
        self.stderr.end();
    }
}

impl State {
    /// A new command, to be described to the guest with this id.
    pub(super) fn start(&mut self, has_stdin: bool) -> u32 {
        while self.commands.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.commands.insert(id, Entry::new(has_stdin));
        id
    }

    /// A command that the machine that the guest's is a copy of had under this id.
    pub(super) fn adopt(&mut self, id: u32) {
        self.commands.insert(id, Entry::new(true));
    }

    /// Whether messages to the command make sense.
    pub(super) fn is_running(&self, id: u32) -> bool {
        self.commands
            .get(&id)
            .is_some_and(|entry| entry.exit.is_none() && !entry.failed())
    }

    /// Nobody holds the command; its output is dropped, and when it ends it is
    /// forgotten.
    pub(super) fn release(&mut self, id: u32) {
        let Some(entry) = self.commands.get_mut(&id) else {
            return;
        };
        entry.released = true;
        if entry.exit.is_some() || entry.failed() || self.lost.is_some() {
            self.commands.remove(&id);
        }
    }

    /// The conversation is over.
    pub(super) fn lose(&mut self, lost: Lost) {
        self.lost.get_or_insert(lost);
    }

    /// Takes a message from the guest.
    ///
    /// # Errors
    /// How it breaks the protocol, for the user.
    pub(super) fn handle(&mut self, message: ToHost) -> Result<(), String> {
        let now = Instant::now();
        match message {
            ToHost::Hello(hello) => {
                if self.hello.is_some() {
                    return Err("the guest said hello twice".into());
                }
                self.hello = Some((now, hello));
            }
            ToHost::Booted(timings) => {
                if self.hello.is_none() || self.booted.is_some() {
                    return Err("the guest booted out of turn".into());
                }
                self.booted = Some((now, timings.phases));
            }
            ToHost::BootFailed(failure) => {
                if self.booted.is_some() {
                    return Err("the guest failed to boot after it had".into());
                }
                self.lose(Lost::boot_failed(&failure));
            }
            ToHost::Started {
                id,
                pid,
                stdin_window,
            } => {
                let entry = self.starting(id)?;
                entry.start = Some(Ok(pid));
                entry.moments.started = Some(now);
                entry.stdin = SendWindow::new(stdin_window);
            }
            ToHost::StartFailed { id, failure } => {
                let entry = self.starting(id)?;
                entry.start = Some(Err(failure));
                entry.end_output();
                self.finish(id);
            }
            ToHost::Output { id, stream, data } => {
                if data.len() > MAX_DATA {
                    return Err(format!("the guest sent {} bytes at once", data.len()));
                }
                let entry = self.running(id)?;
                entry.moments.first_output.get_or_insert(now);
                let credit = entry
                    .output(stream)
                    .receive(&data)
                    .map_err(|error| error.to_string())?;
                self.outbox.credit(id, stream, credit);
            }
            ToHost::Exited { id, status } => {
                let entry = self.running(id)?;
                entry.exit = Some(status);
                entry.end_output();
                self.finish(id);
            }
            ToHost::StdinCredit { id, bytes } => {
                let entry = self.running(id)?;
                entry
                    .stdin
                    .grant(bytes)
                    .map_err(|error| error.to_string())?;
            }
            ToHost::StdinClosed { id } => {
                self.running(id)?.stdin_closed = true;
            }
            ToHost::Resting => self.resting = true,
            ToHost::Resumed => {
                if self.booted.is_some() || self.resumed.is_some() {
                    return Err("the guest resumed out of turn".into());
                }
                self.resumed = Some(now);
            }
            ToHost::ShutdownDone { problem } => {
                self.shut_down = Some(problem);
            }
        }
        Ok(())
    }

    fn starting(&mut self, id: u32) -> Result<&mut Entry, String> {
        self.commands
            .get_mut(&id)
            .filter(|entry| entry.start.is_none())
            .ok_or_else(|| format!("the guest started command {id}, which nobody asked for"))
    }

    fn running(&mut self, id: u32) -> Result<&mut Entry, String> {
        self.commands
            .get_mut(&id)
            .filter(|entry| matches!(entry.start, Some(Ok(_))) && entry.exit.is_none())
            .ok_or_else(|| format!("the guest spoke of command {id}, which does not run"))
    }

    fn finish(&mut self, id: u32) {
        self.outbox.forget(id);
        if self.commands.get(&id).is_some_and(|entry| entry.released) {
            self.commands.remove(&id);
        }
    }
}
