//! The state of a command in the guest, and of its streams.

use std::time::{Duration, Instant};

use micabox_wire::{ExitStatus, OutputStream, SendWindow, StartFailed};

use super::client::ClientId;
use super::output::{Output, Sink, output_window};
use crate::descriptor::Descriptor;
use crate::protocol::{Exec, WINDOW};

/// A command.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) stage: Stage,
    pub(super) reader: Reader,
    pub(super) stdin: Input,
    /// The guest's window for stdin.
    pub(super) stdin_window: SendWindow,
    /// The attached client that its stdin comes from.
    pub(super) input_of: Option<InputOf>,
    pub(super) stdout: Output,
    pub(super) stderr: Output,
    /// Why its output can't be written, though something may read it.
    pub(super) unwritten: Option<String>,
    pub(super) lifetime: bool,
    pub(super) detach: bool,
    pub(super) measure: bool,
    pub(super) sigpipe: bool,
    pub(super) output_outlives_kill: bool,
    pub(super) has_tty: bool,
    /// Its start was noted as an event, and its end will be.
    pub(super) is_noted: bool,
    /// The client's description of it, for other clients.
    pub(super) note: String,
    pub(super) kill: Kill,
    pub(super) time: Time,
    /// The time between its stop signal and SIGKILL.
    pub(super) grace: Duration,
    /// When the guest must have answered: about its start, or, with `answer_timeout`, at all.
    pub(super) answer_by: Option<Instant>,
    /// How long the guest may be silent about the running command while it is the guest's turn.
    pub(super) answer_timeout: Option<Duration>,
}

/// How far a command is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The guest has not answered the request to start it.
    Requested,
    /// The guest could not start it.
    Failed(StartFailed),
    Running {
        pid: u32,
    },
    /// It has ended. Some of its output may not have been written yet.
    Ended {
        pid: u32,
        status: ExitStatus,
    },
}

/// Who reads a command's output, and is notified of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// The client that will reattach it: it is the first command of a copy.
    Awaited,
    /// The client that started or reattached it, and the client's number for it.
    Client(ClientId, u32),
    /// None: its client has left it, or is gone.
    Gone,
}

/// Whether a command is to be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kill {
    No,
    /// With SIGKILL: output that its client does not take does not hold up its end.
    Asked,
    /// As well if it starts only now: its client is gone.
    Abandoned,
}

/// The time that a command may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// Not limited, or not any more.
    Unlimited,
    /// It gets its stop signal at `until`, which is set when it has started.
    Limited {
        timeout: Duration,
        until: Option<Instant>,
    },
    /// Its time is over, and it has got its stop signal. It gets SIGKILL at `until`.
    Over { until: Option<Instant> },
}

/// A client that is attached to a command's stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InputOf {
    pub(super) client: (ClientId, u32),
    /// The command's stdin ends where the client's descriptor does.
    pub(super) ends: bool,
}

/// Where a command's streams come from and go to.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) stdin: Input,
    pub(super) stdout: Sink,
    pub(super) stderr: Sink,
}

/// Where stdin comes from.
#[derive(Debug)]
pub(super) enum Input {
    Closed,
    /// Open and always empty.
    Idle,
    Frames,
    Descriptor(Descriptor),
}

impl Input {
    /// Reads into `buffer`. Returns None at the end, and 0 if nothing is there now.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Option<usize> {
        match self {
            Self::Descriptor(descriptor) => match descriptor.read(buffer) {
                Ok(Some(0)) | Err(_) => None,
                Ok(count) => Some(count.unwrap_or(0)),
            },
            Self::Closed | Self::Idle | Self::Frames => None,
        }
    }
}

impl Time {
    /// Returns when the command gets its next signal.
    pub(super) fn until(&self) -> Option<Instant> {
        match self {
            Self::Unlimited => None,
            Self::Limited { until, .. } | Self::Over { until } => *until,
        }
    }

    /// Begins the time of a command that has started.
    pub(super) fn begin(&mut self) {
        if let Self::Limited { timeout, until } = self {
            *until = Instant::now().checked_add(*timeout);
        }
    }
}

impl Command {
    /// Makes a command that no client has claimed yet: its output is held.
    pub(super) fn unclaimed() -> Self {
        Self {
            stage: Stage::Requested,
            reader: Reader::Awaited,
            stdin: Input::Closed,
            stdin_window: SendWindow::new(0),
            input_of: None,
            stdout: Output::new(Sink::Held, WINDOW),
            stderr: Output::new(Sink::Held, WINDOW),
            unwritten: None,
            lifetime: false,
            detach: false,
            measure: false,
            sigpipe: false,
            output_outlives_kill: false,
            has_tty: false,
            is_noted: false,
            note: String::new(),
            kill: Kill::No,
            time: Time::Unlimited,
            grace: Duration::ZERO,
            answer_by: None,
            answer_timeout: None,
        }
    }

    /// Makes a command that a client has requested.
    pub(super) fn new(client: (ClientId, u32), exec: &Exec, streams: Streams) -> Self {
        let window = output_window(exec.window);
        let mut command = Self {
            stdout: Output::new(Sink::Held, window),
            stderr: Output::new(Sink::Held, window),
            has_tty: exec.tty.is_some(),
            note: exec.note.clone(),
            ..Self::unclaimed()
        };
        command.claim(client, exec, streams);
        command
    }

    /// Gives the command to a client.
    pub(super) fn claim(&mut self, client: (ClientId, u32), exec: &Exec, streams: Streams) {
        self.reader = Reader::Client(client.0, client.1);
        self.stdin = streams.stdin;
        self.stdout.sink = streams.stdout;
        self.stderr.sink = streams.stderr;
        self.lifetime = exec.lifetime;
        self.detach = exec.detach;
        self.measure = exec.measure;
        self.sigpipe = exec.sigpipe;
        self.output_outlives_kill = exec.output_outlives_kill;
        let limit = |millis| (millis > 0).then(|| Duration::from_millis(millis));
        self.time = match limit(exec.timeout) {
            Some(timeout) => Time::Limited {
                timeout,
                until: None,
            },
            None => Time::Unlimited,
        };
        self.answer_timeout = limit(exec.answer_timeout);
        self.grace = Duration::from_millis(exec.grace);
    }

    /// Returns the client that it belongs to.
    pub(super) fn client(&self) -> Option<(ClientId, u32)> {
        match self.reader {
            Reader::Client(client, number) => Some((client, number)),
            Reader::Awaited | Reader::Gone => None,
        }
    }

    /// Takes it from its client, which is returned.
    pub(super) fn take_client(&mut self) -> Option<(ClientId, u32)> {
        let client = self.client();
        self.reader = Reader::Gone;
        client
    }

    /// Returns whether no client has claimed it yet, and one may.
    pub(super) fn is_awaited(&self) -> bool {
        self.reader == Reader::Awaited
    }

    /// Returns the client whose frames are its stdin.
    pub(super) fn typist(&self) -> Option<(ClientId, u32)> {
        let client = self.attached_input().or(self.client());
        client.filter(|_| matches!(self.stdin, Input::Frames))
    }

    /// Returns the attached client that its stdin comes from.
    pub(super) fn attached_input(&self) -> Option<(ClientId, u32)> {
        self.input_of.map(|input| input.client)
    }

    /// Returns whether the guest has not answered the request to start it.
    pub(super) fn is_requested(&self) -> bool {
        self.stage == Stage::Requested
    }

    /// Returns its PID if it runs.
    pub(super) fn running_pid(&self) -> Option<u32> {
        match self.stage {
            Stage::Running { pid } => Some(pid),
            Stage::Requested | Stage::Failed(_) | Stage::Ended { .. } => None,
        }
    }

    pub(super) fn runs(&self) -> bool {
        self.running_pid().is_some()
    }

    /// Notes how it ended, if it runs.
    pub(super) fn end(&mut self, status: ExitStatus) {
        if let Stage::Running { pid } = self.stage {
            self.stage = Stage::Ended { pid, status };
        }
    }

    /// Returns how it ended.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        match self.stage {
            Stage::Ended { status, .. } => Some(status),
            Stage::Requested | Stage::Failed(_) | Stage::Running { .. } => None,
        }
    }

    pub(super) fn output(&mut self, stream: OutputStream) -> &mut Output {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }

    /// Returns whether output that its client has granted no bytes for is dropped.
    pub(super) fn drops_output(&self) -> bool {
        self.kill != Kill::No && !self.output_outlives_kill
    }

    /// Returns whether all its output has been written.
    pub(super) fn is_written(&self) -> bool {
        let is_written = |output: &Output| !output.is_pending() && output.copies.are_written();
        is_written(&self.stdout) && is_written(&self.stderr)
    }

    /// Sets when the guest must have sent a message of the running command, if it is the guest's turn.
    pub(super) fn expect_answer(&mut self, now: Instant, is_busy: bool) {
        let Some(timeout) = self.answer_timeout.filter(|_| self.runs()) else {
            return;
        };
        self.answer_by = if is_busy || self.waits_for_client() {
            None
        } else {
            self.answer_by.or_else(|| now.checked_add(timeout))
        };
    }

    /// Returns whether the guest can send no output, or waits for stdin.
    fn waits_for_client(&self) -> bool {
        let can_send = !matches!(self.stdin, Input::Closed) && self.stdin_window.available() > 0;
        can_send
            || !self.is_written()
            || self.stdout.waits_for_credit()
            || self.stderr.waits_for_credit()
    }

    /// Drops what could not be written.
    pub(super) fn drop_output(&mut self) {
        for output in [&mut self.stdout, &mut self.stderr] {
            output.discard();
            output.copies.clear();
        }
    }

    /// Returns the clients that are attached to it.
    pub(super) fn attached(&self) -> Vec<(ClientId, u32)> {
        let copies = self.stdout.copies.iter().chain(self.stderr.copies.iter());
        let mut clients: Vec<_> = copies.map(|copy| copy.client).collect();
        clients.extend(self.attached_input());
        clients.sort_unstable();
        clients.dedup();
        clients
    }
}
