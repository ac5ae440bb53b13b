//! The host's end of one of a command's outputs.

use std::collections::VecDeque;
use std::io::Read;

use micabox_wire::{ReceiveWindow, WindowError};

/// Bytes of one output that the guest may have under way or we may hold: enough to
/// keep a fast writer busy, little enough for hundreds of commands.
pub(crate) const OUTPUT_WINDOW: u32 = 256 << 10;

/// Output that has arrived and has not been read.
#[derive(Debug)]
pub(super) struct Pipe {
    bytes: VecDeque<u8>,
    window: ReceiveWindow,
    /// Nothing more will come.
    ended: bool,
    /// Nobody will read it.
    discarded: bool,
}

impl Pipe {
    pub(super) fn new() -> Self {
        Self {
            bytes: VecDeque::new(),
            window: ReceiveWindow::new(OUTPUT_WINDOW),
            ended: false,
            discarded: false,
        }
    }

    /// Takes what the guest sent. The result is credit to send back, if any.
    pub(super) fn receive(&mut self, data: &[u8]) -> Result<Option<u32>, WindowError> {
        self.window.received(data.len())?;
        if self.discarded {
            return Ok(self.window.handed_on(data.len()));
        }
        self.bytes.extend(data);
        Ok(None)
    }

    /// Moves bytes into `buffer`: how many, and the credit to send back. None when
    /// there is nothing to move yet.
    pub(super) fn take(&mut self, buffer: &mut [u8]) -> Option<(usize, Option<u32>)> {
        if self.bytes.is_empty() && !self.ended {
            return None;
        }
        // Reading from memory does not fail.
        let count = self.bytes.read(buffer).unwrap_or(0);
        Some((count, self.window.handed_on(count)))
    }

    /// The command has ended: what is here is all there will be.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Forgets what is here and all that will come. The result is credit to send.
    pub(super) fn discard(&mut self) -> Option<u32> {
        self.discarded = true;
        let held = std::mem::take(&mut self.bytes).len();
        self.window.handed_on(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_and_then_the_end() {
        let mut pipe = Pipe::new();
        assert_eq!(pipe.take(&mut [0; 4]), None);
        pipe.receive(b"abc").unwrap();
        pipe.receive(b"").unwrap();
        pipe.receive(b"de").unwrap();
        let mut buffer = [0; 2];
        let mut all = Vec::new();
        while let Some((count, _)) = pipe.take(&mut buffer) {
            all.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(all, b"abcde");
        pipe.receive(b"f").unwrap();
        pipe.end();
        assert_eq!(pipe.take(&mut buffer), Some((1, None)));
        assert_eq!(pipe.take(&mut buffer), Some((0, None)));
    }

    #[test]
    fn a_guest_can_not_fill_our_memory() {
        let mut pipe = Pipe::new();
        let half = OUTPUT_WINDOW as usize / 2;
        assert_eq!(pipe.receive(&vec![0; half]), Ok(None));
        assert_eq!(pipe.receive(&vec![0; half]), Ok(None));
        assert!(pipe.receive(&[0]).is_err());
        let (count, credit) = pipe.take(&mut vec![0; half]).unwrap();
        assert_eq!((count, credit), (half, Some(OUTPUT_WINDOW / 2)));
    }

    #[test]
    fn what_nobody_reads_does_not_stall_the_command() {
        let mut pipe = Pipe::new();
        let all = OUTPUT_WINDOW as usize;
        pipe.receive(&vec![0; all]).unwrap();
        assert_eq!(pipe.discard(), Some(OUTPUT_WINDOW));
        assert_eq!(pipe.receive(&vec![0; all]), Ok(Some(OUTPUT_WINDOW)));
    }
}
