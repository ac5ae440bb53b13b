//! How much is asked for at once, and what comes of it: of layers' blobs, and of packs.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::Receiver;

/// The most that is asked for at once, once what follows each other is read, in packed bytes.
pub(crate) const AHEAD: u64 = 2 << 20;

/// Packed bytes that are asked for at once for one chunk that is missing, at most. Its reader waits for that chunk alone,
/// and a line of 100 Mbit/s carries the rest until the next answer can come.
pub(crate) const ONCE: u64 = 256 << 10;

/// Packed bytes that are asked for at once where nothing near was read yet. For each earlier request near it they are twice
/// as many, up to [`ONCE`]: who has come back to a place reads more of it.
const FIRST: u64 = 64 << 10;

/// Packed bytes between two places that are near each other.
const NEAR: u64 = 8 << 20;

/// Requests that are remembered.
const REMEMBERED: usize = 64;

/// Runs whose readers have what they asked for, and whose rest is under way. On a line that doesn't carry more in time,
/// readers ask for the one chunk that they need.
const BEHIND: usize = 2;

/// What readers have asked for.
#[derive(Default)]
pub(crate) struct Asked {
    /// The place behind what was asked for last, and how many bytes that could have been.
    next: u64,
    bytes: u64,
    /// Where something was asked for last.
    places: VecDeque<u64>,
    /// Runs of readers that are not over.
    runs: usize,
}

impl Asked {
    /// Returns how many packed bytes a reader asks for at a place, and remembers it.
    pub(crate) fn ask(&mut self, place: u64) -> u64 {
        let near = self.places.iter().filter(|one| one.abs_diff(place) < NEAR);
        let doublings = near.count().min(8);
        let most = (FIRST << doublings).min(ONCE);
        if self.places.len() == REMEMBERED {
            self.places.pop_front();
        }
        self.places.push_back(place);
        if self.runs >= BEHIND {
            0
        } else if self.next == place {
            (self.bytes * 2).clamp(most, AHEAD)
        } else {
            most
        }
    }

    /// Notes that a reader's run of at most so many bytes begins, and the place behind it.
    pub(crate) fn begin(&mut self, end: u64, most: u64) {
        (self.next, self.bytes) = (end, most);
        self.runs += 1;
    }

    /// Notes that a reader's run is over.
    pub(crate) fn end(&mut self) {
        self.runs -= 1;
    }
}

/// Bytes that were fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Who has sent them, for errors.
    pub from: String,
}

/// An answer, which comes piece by piece.
pub(crate) struct Answer {
    pieces: Receiver<io::Result<Fetched>>,
    /// What came and was not taken yet.
    bytes: Vec<u8>,
    from: String,
}

impl Answer {
    pub(crate) fn new(pieces: Receiver<io::Result<Fetched>>) -> Self {
        Self {
            pieces,
            bytes: Vec::new(),
            from: String::new(),
        }
    }

    /// Waits for the next `length` bytes, and takes them.
    ///
    /// # Errors
    ///
    /// The last piece's; another one if they don't come.
    pub(crate) fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.bytes.len() < length {
            let ended = || io::Error::other("the transfer that it was a part of has ended");
            let Fetched { bytes, from } = self.pieces.recv().map_err(|_| ended())??;
            self.bytes.extend(bytes);
            self.from = from;
        }
        let behind = self.bytes.split_off(length);
        Ok(std::mem::replace(&mut self.bytes, behind))
    }

    /// Returns an error about what came, with its sender.
    pub(crate) fn wrong(&self, problem: &dyn std::fmt::Display) -> io::Error {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{problem}, from {}", self.from),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_read_near_brings_more_and_one_far_away_does_not() {
        let mut asked = Asked::default();
        let mut ask = |place| asked.ask(place) >> 10;
        assert_eq!(
            [ask(1), ask(1 << 20), ask(2 << 20), ask(3 << 20)],
            [64, 128, 256, 256]
        );
        assert_eq!(ask(NEAR * 4), 64);
        // Who reads on gets twice as much each time.
        asked.begin(4 << 20, 1 << 20);
        assert_eq!(asked.ask(4 << 20), AHEAD);
        asked.begin(5 << 20, AHEAD);
        assert_eq!(asked.ask(5 << 20), 0);
        asked.end();
        assert_eq!(asked.ask(5 << 20), AHEAD);
        for place in 0..1000 {
            asked.ask(place << 30);
        }
        assert_eq!(asked.places.len(), REMEMBERED);
    }
}
