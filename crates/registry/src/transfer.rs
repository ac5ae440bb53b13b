//! Streams a blob's bytes, across any number of broken connections.
//!
//! The reader hashes and converts the bytes as they come, so none can be taken back: after a
//! failure the stream continues with the next byte. Most registries send just the rest when asked
//! for a range; from one that starts again from the beginning (as the specification allows), the
//! bytes that the reader already has are skipped.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes};
use reqwest::header::{HeaderMap, HeaderValue, RANGE};
use tokio::sync::{Semaphore, mpsc};
use url::Url;

use crate::Source;
use crate::error::Reason;
use crate::http::Answer;
use crate::ranges::{self, Stopped};
use crate::retry::Attempts;
use micabox_oci::Digest;
use micabox_oci::progress::{Event, LayerState, Progress};

/// Pieces between the socket and the reader, each up to some hundred KiB. When all are full, the
/// socket isn't read: the registry waits.
const PIECES: usize = 8;
/// Bytes of progress that reset the count of failures. Not one byte, or a registry could keep a
/// transfer going without end.
pub(crate) const PROGRESS: u64 = 1 << 20;

/// Bytes of progress after which an answer that ends early is one part of several: some registries
/// send no more than a few hundred KiB at once. Of a small blob, a part of it is enough.
const PART: u64 = 64 << 10;
const MOST_PARTS: u64 = 1000;

/// Creates a connected sender and [`BlobReader`].
#[must_use]
pub fn channel() -> (BlobSender, BlobReader) {
    let (sender, receiver) = mpsc::channel(PIECES);
    let reader = BlobReader {
        receiver,
        current: Bytes::new(),
        finished: false,
    };
    let sender = BlobSender {
        sender,
        offset: 0,
        one_connection: false,
        ranges_used: Arc::default(),
    };
    (sender, reader)
}

enum Piece {
    Bytes(Bytes),
    /// The end of the blob, as opposed to a sender that gave up.
    End,
}

impl BlobSender {
    /// Skips the blob's first `bytes` bytes, which the reader has from elsewhere.
    pub fn skip(&mut self, bytes: u64) {
        self.offset = bytes;
    }

    /// Fetches the blob on one connection, however large it is.
    pub fn use_one_connection(&mut self) {
        self.one_connection = true;
    }

    /// Returns what becomes true once the blob is fetched in ranges on several connections.
    #[must_use]
    pub fn ranges_used(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ranges_used)
    }
}

/// The sending end of a blob's stream, fed from the network.
pub struct BlobSender {
    sender: mpsc::Sender<Piece>,
    /// How many of the blob's bytes the reader has.
    offset: u64,
    one_connection: bool,
    ranges_used: Arc<AtomicBool>,
}

/// The reading end of a blob's stream, for a conversion on a thread that may block.
pub struct BlobReader {
    receiver: mpsc::Receiver<Piece>,
    current: Bytes,
    finished: bool,
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.finished && !buffer.is_empty() {
            match self.receiver.blocking_recv() {
                Some(Piece::Bytes(bytes)) => self.current = bytes,
                Some(Piece::End) => self.finished = true,
                // The sender knows the reason.
                None => return Err(io::Error::other("the transfer was given up")),
            }
        }
        let count = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

/// Why a transfer ended early.
#[derive(Debug)]
pub(crate) enum Interrupted {
    /// The reader was dropped.
    HungUp,
    /// The network or the registry failed.
    Failed(Reason),
}

impl From<Reason> for Interrupted {
    fn from(reason: Reason) -> Self {
        Self::Failed(reason)
    }
}

/// What an answer had of a blob.
enum Part {
    /// All that was missing.
    Last,
    /// Some of it, as it said.
    More,
}

/// A blob that is being fetched, and its destination.
pub(crate) struct Incoming<'a> {
    /// Identifies the layer in progress events.
    pub diff_id: &'a Digest,
    /// Size of the blob in bytes.
    pub size: u64,
    pub sender: &'a mut BlobSender,
    pub progress: &'a dyn Progress,
    /// Connections beyond the first of each blob.
    pub extra: &'a Semaphore,
}

impl Incoming<'_> {
    /// Sends the end of the blob to the reader.
    pub(crate) async fn finish(&mut self) {
        // A reader that was dropped needs no end.
        let _ = self.sender.sender.send(Piece::End).await;
    }

    /// Sends the missing part of the blob from `source`, with retries.
    pub(crate) async fn run(&mut self, source: &Source, url: &Url) -> Result<(), Interrupted> {
        let transfer = source.http.transfer();
        let mut attempts = Attempts::new(transfer, source.is_mirror());
        let mut ranges = true;
        let mut connections = if self.sender.one_connection {
            1
        } else {
            transfer.connections.get()
        };
        loop {
            let start = self.sender.offset;
            let attempt = if connections > 1 && self.is_large() && !source.has_no_ranges() {
                self.on_several(source, url, &mut connections).await
            } else {
                self.attempt(source, url, &mut ranges).await
            };
            let reason = match attempt {
                Err(Interrupted::Failed(reason)) => reason,
                Ok(Part::Last) => return Ok(()),
                Ok(Part::More) => continue,
                Err(hung_up) => return Err(hung_up),
            };
            if self.sender.offset - start >= PROGRESS {
                attempts.progressed();
            }
            let text = reason.to_string();
            let pause = attempts.failed(reason)?;
            retrying(self.progress, self.diff_id, &text, pause);
            tokio::time::sleep(pause).await;
        }
    }

    /// Returns whether what is missing is worth more than one connection.
    fn is_large(&self) -> bool {
        self.size.saturating_sub(self.sender.offset) >= 2 * ranges::LENGTH
    }

    /// Sends what is missing by ranges, on at most `connections`. What ends them is no failure of the
    /// transfer: what is still missing then is asked for on one connection.
    async fn on_several(
        &mut self,
        source: &Source,
        url: &Url,
        connections: &mut usize,
    ) -> Result<Part, Interrupted> {
        let stopped = match ranges::run(self, source, url, *connections).await {
            Ok(()) => return Ok(Part::Last),
            Err(stopped) => stopped,
        };
        *connections = 1;
        match stopped {
            Stopped::Unusable => source.note_no_ranges(),
            Stopped::Interrupted(Interrupted::HungUp) => return Err(Interrupted::HungUp),
            Stopped::Interrupted(Interrupted::Failed(reason)) => {
                // One that limits many connections may well take one.
                let longest = source.http.transfer().longest_pause;
                if let Some(pause) = reason.retry_after().map(|pause| pause.min(longest)) {
                    retrying(self.progress, self.diff_id, &reason.to_string(), pause);
                    tokio::time::sleep(pause).await;
                }
            }
        }
        Ok(Part::More)
    }

    async fn attempt(
        &mut self,
        source: &Source,
        url: &Url,
        ranges: &mut bool,
    ) -> Result<Part, Interrupted> {
        let start = self.sender.offset;
        if self.size > 0 && start == self.size {
            // The connection broke after the last byte, or all of the blob was kept.
            return Ok(Part::Last);
        }
        let mut answer = self.open(source, url, *ranges).await?;
        let mut first = self.first_byte(&answer)?;
        if first.is_none() && matches!(answer.status().as_u16(), 206 | 416) {
            // The registry's ranges are unusable: request the whole blob.
            *ranges = false;
            answer = self.open(source, url, false).await?;
            first = self.first_byte(&answer)?;
        }
        // The offset within the blob of the next byte.
        let Some(mut at) = first else {
            return Err(answer.refusal(|_| Reason::NoBlob).await.into());
        };
        while let Some(mut piece) = answer.chunk().await? {
            let length = piece.len() as u64;
            let seen = self.sender.offset.saturating_sub(at).min(length);
            at = at.saturating_add(length);
            if at > self.size {
                self.check_size(at)?;
            }
            piece.advance(seen as usize);
            if !piece.is_empty() {
                self.place().await?;
                self.send(piece)?;
            }
        }
        if at == self.size {
            Ok(Part::Last)
        } else if answer.status().as_u16() == 206
            && self.sender.offset - start >= PART.min(self.size.div_ceil(MOST_PARTS))
        {
            Ok(Part::More)
        } else {
            let problem = format!("it ended after {at} of {} bytes", self.size);
            Err(Reason::Broken(problem).into())
        }
    }

    /// Returns where in the blob a response's body begins; `None` if the response is unusable.
    fn first_byte(&self, answer: &Answer) -> Result<Option<u64>, Reason> {
        match answer.status().as_u16() {
            200 => {
                if answer.is_html() && answer.content_length() != Some(self.size) {
                    return Err(Reason::WebPage);
                }
                answer
                    .content_length()
                    .map_or(Ok(()), |length| self.check_size(length))?;
                Ok(Some(0))
            }
            206 => {
                let range = answer.header("content-range");
                let Some(range) = range.and_then(ContentRange::parse) else {
                    return Ok(None);
                };
                let total = range.total;
                total.map_or(Ok(()), |total| self.check_size(total))?;
                Ok(Some(range.first).filter(|first| *first <= self.sender.offset))
            }
            _ => Ok(None),
        }
    }

    async fn open(&self, source: &Source, url: &Url, ranges: bool) -> Result<Answer, Reason> {
        let mut headers = HeaderMap::new();
        if self.sender.offset > 0 && ranges {
            let range = HeaderValue::try_from(format!("bytes={}-", self.sender.offset));
            headers.extend(range.ok().map(|range| (RANGE, range)));
        }
        source.get(url, &headers).await
    }

    /// Notes that the reader has bytes from ranges on several connections.
    pub(crate) fn note_ranges(&self) {
        self.sender.ranges_used.store(true, Ordering::Relaxed);
    }

    /// Returns how many of the blob's bytes the reader has.
    pub(crate) fn offset(&self) -> u64 {
        self.sender.offset
    }

    /// Waits until one more piece has a place; returns whether the reader had nothing left.
    pub(crate) async fn place(&self) -> Result<bool, Interrupted> {
        let sender = &self.sender.sender;
        let reader_waits = sender.capacity() == PIECES;
        let place = sender.reserve().await;
        place.map(|_| reader_waits).map_err(|_| Interrupted::HungUp)
    }

    /// Sends a piece, for which there is a place: nobody else sends.
    pub(crate) fn send(&mut self, piece: Bytes) -> Result<(), Interrupted> {
        let length = piece.len() as u64;
        let sent = self.sender.sender.try_send(Piece::Bytes(piece));
        sent.map_err(|_| Interrupted::HungUp)?;
        self.sender.offset += length;
        self.event(LayerState::Received {
            bytes: self.sender.offset,
        });
        Ok(())
    }

    fn check_size(&self, actual: u64) -> Result<(), Reason> {
        if actual == self.size {
            Ok(())
        } else {
            Err(Reason::Size {
                declared: self.size,
                actual,
            })
        }
    }

    fn event(&self, state: LayerState<'_>) {
        let diff_id = self.diff_id;
        self.progress.event(Event::Layer { diff_id, state });
    }
}

/// Reports that a request is sent again after a pause.
pub(crate) fn retrying(progress: &dyn Progress, diff_id: &Digest, reason: &str, pause: Duration) {
    let state = LayerState::Retrying { reason, pause };
    progress.event(Event::Layer { diff_id, state });
}

/// A `Content-Range`, such as `bytes 7-11/12`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentRange {
    /// First byte.
    pub first: u64,
    /// Last byte.
    pub last: Option<u64>,
    /// Length of the whole, if it is known.
    pub total: Option<u64>,
}

impl ContentRange {
    /// Parses a header's value; `None` if it has no first byte.
    pub fn parse(text: &str) -> Option<Self> {
        let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let number = |text: &str| text.trim().parse::<u64>().ok();
        Some(Self {
            first: number(first)?,
            last: number(last),
            total: number(total),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_parsed() {
        for (text, last, total) in [
            ("bytes 7-11/12", Some(11), Some(12)),
            ("bytes 7-11/*", Some(11), None),
            ("bytes 7-/12", None, Some(12)),
        ] {
            let first = 7;
            let range = ContentRange { first, last, total };
            assert_eq!(ContentRange::parse(text), Some(range), "{text}");
        }
        for nonsense in [
            "",
            "bytes",
            "bytes */12",
            "7-11/12",
            "bytes -5-11/12",
            "items 0-1/2",
        ] {
            assert_eq!(ContentRange::parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_blobs_reader_tells_the_end_from_a_broken_connection() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        for finished in [true, false] {
            let (sender, mut reader) = channel();
            runtime.block_on(async {
                for piece in ["abc", "defg"] {
                    let piece = Piece::Bytes(Bytes::from_static(piece.as_bytes()));
                    assert!(sender.sender.send(piece).await.is_ok());
                }
                if finished {
                    assert!(sender.sender.send(Piece::End).await.is_ok());
                }
            });
            drop(sender);
            let mut start = [0; 5];
            reader.read_exact(&mut start).unwrap();
            assert_eq!(&start, b"abcde");
            let mut rest = Vec::new();
            assert_eq!(reader.read_to_end(&mut rest).is_ok(), finished);
            assert_eq!(rest, b"fg");
        }
    }
}
