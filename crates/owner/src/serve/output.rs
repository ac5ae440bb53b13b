//! An output of a command: where it goes, what of it is held, and what the guest may still send.

use std::collections::VecDeque;

use micabox_wire::{OutputStream, ReceiveWindow, WindowError};

use super::copies::Copies;
use crate::descriptor::Descriptor;
use crate::protocol::frame::Pipe;
use crate::protocol::{MAX_WINDOW, Stream, WINDOW};

/// The outputs of a command.
pub(super) const OUTPUTS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];

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
    pub(super) fn new(sink: Sink, window: u32) -> Self {
        Self {
            sink,
            pending: VecDeque::new(),
            copies: Copies::default(),
            owed: 0,
            window: ReceiveWindow::new(window),
        }
    }

    /// Returns whether the client takes frames, and has granted no more of them.
    pub(super) fn waits_for_credit(&self) -> bool {
        matches!(self.sink, Sink::Frames) && self.window.available() == 0
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
        descriptor.write_after(&mut self.pending, data)
    }

    /// Takes the bytes held until now.
    pub(super) fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending).into()
    }

    /// Drops all later bytes if the client has granted no more. Returns credit for the guest, if it is due.
    pub(super) fn discard_unless_granted(&mut self) -> Option<u32> {
        if self.waits_for_credit() {
            self.discard()
        } else {
            None
        }
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

pub(super) fn pipe(stream: OutputStream) -> Pipe {
    match stream {
        OutputStream::Stdout => Pipe::Stdout,
        OutputStream::Stderr => Pipe::Stderr,
    }
}

pub(super) fn log_stream(stream: OutputStream) -> Stream {
    match stream {
        OutputStream::Stdout => Stream::Stdout,
        OutputStream::Stderr => Stream::Stderr,
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
