//! The state of a command in the guest, and of its streams.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use micabox_wire::{ExitStatus, OutputStream, ReceiveWindow, SendWindow, StartFailed, WindowError};

use super::client::ClientId;
use super::copies::Copies;
use crate::descriptor::Descriptor;
use crate::protocol::{Exec, Stream};

/// Bytes of one output that the guest may have in flight or the owner may hold: enough to keep a
/// fast writer busy, few enough for hundreds of commands.
const WINDOW: u32 = 256 << 10;

/// Largest window that a client may request, in bytes.
const MAX_WINDOW: u32 = 1 << 20;

/// A command.
#[derive(Debug)]
pub(super) struct Command {
    /// The client that started it, and the client's number for it.
    pub(super) client: Option<(ClientId, u32)>,
    /// The guest's answer to the request to start it: its PID, or why not.
    pub(super) start: Option<Result<u32, StartFailed>>,
    pub(super) started: Option<Instant>,
    pub(super) first_output: Option<Instant>,
    pub(super) exit: Option<ExitStatus>,
    pub(super) stdin: Input,
    /// The guest's window for stdin.
    pub(super) stdin_window: SendWindow,
    pub(super) stdout: Output,
    pub(super) stderr: Output,
    pub(super) lifetime: bool,
    pub(super) detach: bool,
    pub(super) measure: bool,
    pub(super) sigpipe: bool,
    /// Why its output can't be written, though something may read it.
    pub(super) unwritten: Option<String>,
    /// Its start was noted as an event, and its end will be.
    pub(super) is_noted: bool,
    pub(super) has_tty: bool,
    /// The attached client that its stdin comes from.
    pub(super) input_of: Option<(ClientId, u32)>,
    /// Its stdin ends where that client's descriptor does.
    pub(super) input_ends: bool,
    /// The client's description of it, for other clients.
    pub(super) note: String,
    /// Its time is over, and it has got its stop signal but no SIGKILL.
    pub(super) timed_out: bool,
    /// How long it may run, and the time between its stop signal and SIGKILL.
    pub(super) timeout: Option<Duration>,
    pub(super) grace: Duration,
    /// It is killed if it starts: its client is gone.
    pub(super) is_abandoned: bool,
    /// It was sent SIGKILL: output that its client does not take does not hold up its end.
    pub(super) is_killed: bool,
    /// When the guest must have answered: about its start, or, with `answer_timeout`, at all.
    pub(super) answer_by: Option<Instant>,
    /// How long the guest may be silent about the running command while it is the guest's turn.
    pub(super) answer_timeout: Option<Duration>,
    /// When it gets its stop signal or, after that, SIGKILL.
    pub(super) deadline: Option<Instant>,
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

/// Where an output goes.
#[derive(Debug)]
pub(super) enum Sink {
    /// Held until a client claims the command.
    Held,
    Discard,
    /// A descriptor that nothing reads any more.
    Broken,
    Frames,
    Log,
    Descriptor(Descriptor),
}

/// An output.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) sink: Sink,
    /// Bytes that the descriptor has not accepted yet.
    pending: VecDeque<u8>,
    /// Copies, for clients that have attached to the command.
    pub(super) copies: Copies,
    /// Bytes that were handed on while a copy was behind: the guest gets no credit for them yet.
    owed: usize,
    window: ReceiveWindow,
}

impl Command {
    /// Makes a command that no client has claimed yet: its output is held.
    pub(super) fn unclaimed() -> Self {
        Self {
            client: None,
            start: None,
            started: None,
            first_output: None,
            exit: None,
            stdin: Input::Closed,
            stdin_window: SendWindow::new(0),
            stdout: Output::new(Sink::Held, WINDOW),
            stderr: Output::new(Sink::Held, WINDOW),
            lifetime: false,
            detach: false,
            measure: false,
            sigpipe: false,
            unwritten: None,
            is_noted: false,
            has_tty: false,
            input_of: None,
            input_ends: false,
            note: String::new(),
            timed_out: false,
            is_abandoned: false,
            is_killed: false,
            answer_by: None,
            answer_timeout: None,
            deadline: None,
            grace: Duration::ZERO,
            timeout: None,
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
        self.client = Some(client);
        self.stdin = streams.stdin;
        self.stdout.sink = streams.stdout;
        self.stderr.sink = streams.stderr;
        self.lifetime = exec.lifetime;
        self.detach = exec.detach;
        self.measure = exec.measure;
        self.sigpipe = exec.sigpipe;
        let limit = |millis| (millis > 0).then(|| Duration::from_millis(millis));
        self.timeout = limit(exec.timeout);
        self.answer_timeout = limit(exec.answer_timeout);
        self.grace = Duration::from_millis(exec.grace);
    }

    /// Returns the client whose frames are its stdin.
    pub(super) fn typist(&self) -> Option<(ClientId, u32)> {
        let client = self.input_of.or(self.client);
        client.filter(|_| matches!(self.stdin, Input::Frames))
    }

    pub(super) fn runs(&self) -> bool {
        self.started.is_some() && self.exit.is_none()
    }

    pub(super) fn output(&mut self, stream: OutputStream) -> &mut Output {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
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
        let is_held =
            |output: &Output| matches!(output.sink, Sink::Frames) && output.window.available() == 0;
        let can_send = !matches!(self.stdin, Input::Closed) && self.stdin_window.available() > 0;
        can_send || !self.is_written() || is_held(&self.stdout) || is_held(&self.stderr)
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
        clients.extend(self.input_of);
        clients.sort_unstable();
        clients.dedup();
        clients
    }
}

/// Returns the bytes that may be sent before the client, or the owner, grants more.
pub(super) fn output_window(window: u32) -> u32 {
    match window {
        0 => WINDOW,
        window => window.min(MAX_WINDOW),
    }
}

impl From<Stream> for OutputStream {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Stdout => Self::Stdout,
            Stream::Stderr => Self::Stderr,
        }
    }
}

impl Output {
    fn new(sink: Sink, window: u32) -> Self {
        Self {
            sink,
            pending: VecDeque::new(),
            copies: Copies::default(),
            owed: 0,
            window: ReceiveWindow::new(window),
        }
    }

    /// Returns the bytes that the guest may send before it gets more credit.
    pub(super) fn window_size(&self) -> u32 {
        self.window.size()
    }

    /// Returns whether some output has not been written yet.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Accounts for bytes that the guest sent.
    pub(super) fn received(&mut self, count: usize) -> Result<(), WindowError> {
        self.window.received(count)
    }

    /// Accounts for bytes that are no longer held. Returns credit for the guest, if it is due.
    pub(super) fn handed_on(&mut self, count: usize) -> Option<u32> {
        self.owed = self.owed.saturating_add(count);
        if !self.copies.are_written() {
            return None;
        }
        self.window.handed_on(std::mem::take(&mut self.owed))
    }

    /// Writes pending bytes and then `data` to the descriptor, as far as it accepts them; the rest
    /// stays pending. Returns the number of bytes written.
    ///
    /// # Errors
    /// Those of write(2): all later writes would fail as well.
    pub(super) fn write(&mut self, data: &[u8]) -> rustix::io::Result<usize> {
        let descriptor = match &self.sink {
            Sink::Descriptor(descriptor) => descriptor,
            Sink::Held => {
                self.pending.extend(data);
                return Ok(0);
            }
            Sink::Broken => return Err(rustix::io::Errno::PIPE),
            Sink::Discard | Sink::Frames | Sink::Log => return Ok(data.len()),
        };
        write_some(descriptor, &mut self.pending, data)
    }

    /// Takes the bytes held until now.
    pub(super) fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending).into()
    }

    /// Drops all later bytes if the client has granted no more. Returns credit for the guest, if it is due.
    pub(super) fn discard_unless_granted(&mut self) -> Option<u32> {
        let is_held = matches!(self.sink, Sink::Frames) && self.window.available() == 0;
        if is_held { self.discard() } else { None }
    }

    /// Drops pending and all later bytes. Returns credit for the guest, if it is due.
    pub(super) fn discard(&mut self) -> Option<u32> {
        self.sink = Sink::Discard;
        self.pending.clear();
        // Bytes that were sent to a client, which will not acknowledge them any more, count as
        // well.
        self.handed_on(usize::MAX)
    }
}

/// Writes `pending` and then `data` to a descriptor, as far as it accepts them; the rest stays
/// pending. Returns the number of bytes written.
pub(super) fn write_some(
    descriptor: &Descriptor,
    pending: &mut VecDeque<u8>,
    mut data: &[u8],
) -> rustix::io::Result<usize> {
    let mut written = 0;
    while !pending.is_empty() {
        let (front, _) = pending.as_slices();
        let count = descriptor.write(front)?;
        if count == 0 {
            break;
        }
        pending.drain(..count);
        written += count;
    }
    while pending.is_empty() && !data.is_empty() {
        let count = descriptor.write(data)?;
        if count == 0 {
            break;
        }
        written += count;
        data = data.get(count..).unwrap_or_default();
    }
    pending.extend(data);
    Ok(written)
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

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn output_that_a_full_descriptor_refuses_waits_in_order() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let descriptor = Descriptor::new(writer.into(), crate::descriptor::Way::Out);
        let mut output = Output::new(Sink::Descriptor(descriptor), 1 << 20);
        let data: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
        let mut written = 0;
        for part in data.chunks(30_000) {
            output.received(part.len()).unwrap();
            written += output.write(part).unwrap();
        }
        assert!(output.is_pending());
        let mut read = Vec::new();
        let mut buffer = [0; 10_000];
        while read.len() < data.len() {
            let count = reader.read(&mut buffer).unwrap();
            read.extend_from_slice(&buffer[..count]);
            written += output.write(&[]).unwrap();
        }
        assert_eq!((read, written), (data.clone(), data.len()));
        drop(reader);
        output.write(b"x").unwrap_err();
    }
}
