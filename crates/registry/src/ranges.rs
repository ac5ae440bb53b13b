//! Fetches one large blob on several connections, a range on each.
//!
//! The reader gets the bytes in their order, as from one connection, and checks the digest of them
//! all. The first range is asked for alone. Then there are two, and twice as many after each range
//! during which the reader mostly waited. Whatever isn't the range that was asked for ends the
//! ranges, and one request for the rest says what the matter is.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use reqwest::header::{HeaderMap, HeaderValue, RANGE};
use tokio::sync::{SemaphorePermit, mpsc};
use url::Url;

use crate::Source;
use crate::error::Reason;
use crate::retry::Attempts;
use crate::transfer::{ContentRange, Incoming, Interrupted, PROGRESS, retrying};

/// Bytes of a range. All of one may wait in memory for its turn.
pub(crate) const LENGTH: u64 = 8 << 20;
/// Bytes of a piece of it. What comes in smaller ones is copied together, since each costs memory of
/// its own.
const PIECE: usize = 64 << 10;
/// The same of a part that a reader waits for: 1.3 ms on a line of 100 Mbit/s.
const PART_PIECE: usize = 16 << 10;
/// Attempts at a range without progress; then the blob is fetched on one connection.
const ATTEMPTS: u32 = 3;

/// Why ranges end before the blob does.
pub(crate) enum Stopped {
    /// The registry's answer isn't the range that was asked for.
    Unusable,
    Interrupted(Interrupted),
}

impl From<Interrupted> for Stopped {
    fn from(interrupted: Interrupted) -> Self {
        Self::Interrupted(interrupted)
    }
}

/// How many ranges are fetched at the same time.
struct Window {
    ranges: usize,
    /// Most ranges at present, and ever.
    most: usize,
    limit: usize,
    /// Bytes since the last change, and those of them for which the reader waited.
    sent: u64,
    awaited: u64,
}

impl Window {
    /// Begins with one range of at most `limit`.
    fn new(limit: usize) -> Self {
        Self {
            ranges: 1,
            most: limit,
            limit,
            sent: 0,
            awaited: 0,
        }
    }

    fn sent(&mut self, bytes: u64, reader_waits: bool) {
        self.sent += bytes;
        if reader_waits {
            self.awaited += bytes;
        }
    }

    /// Notes that the reader has a whole range. The second connection hides the pause between two
    /// answers; more are of use only to a reader that waits.
    fn range_ended(&mut self) {
        if self.ranges == 1 || self.awaited > self.sent / 2 {
            self.ranges = (self.ranges * 2).min(self.most);
        }
        self.most = (self.most + 1).min(self.limit);
        (self.sent, self.awaited) = (0, 0);
    }

    /// Notes that a connection failed: some registries break what is too much for them.
    fn failed(&mut self) {
        self.most = (self.ranges / 2).max(1);
        self.ranges = self.ranges.min(self.most);
    }
}

/// A range whose bytes come in while earlier ones are sent to the reader.
struct Ahead<'a> {
    /// Pieces, and why there are no more, unless the range is complete.
    pieces: mpsc::UnboundedReceiver<Result<Bytes, Stopped>>,
    /// Bytes that the reader lacks.
    left: u64,
    /// None of the range that the reader reads: each blob has one without.
    permit: Option<SemaphorePermit<'a>>,
}

/// Sends the rest of the blob to the reader, on at most `limit` connections. A range beyond the one
/// that is being read takes a permit of `extra`, which all blobs of an image share.
pub(crate) async fn run(
    incoming: &mut Incoming<'_>,
    source: &Source,
    url: &Url,
    limit: usize,
) -> Result<(), Stopped> {
    let (extra, progress, diff_id) = (incoming.extra, incoming.progress, incoming.diff_id);
    let retrying = |reason: &str, pause| retrying(progress, diff_id, reason, pause);
    let size = incoming.size;
    let mut next = incoming.offset();
    let mut window = Window::new(limit);
    let mut fetching = FuturesUnordered::new();
    let mut ahead: VecDeque<Ahead<'_>> = VecDeque::new();
    let mut piece = None;
    loop {
        while ahead.len() < window.ranges && next < size {
            let permit = if ahead.is_empty() {
                None
            } else if let Ok(permit) = extra.try_acquire() {
                Some(permit)
            } else {
                break;
            };
            let range = next..size.min(next + LENGTH);
            next = range.end;
            let left = range.end - range.start;
            // Holds no more than the range.
            let (sender, pieces) = mpsc::unbounded_channel();
            let fetch = Fetch {
                source,
                url,
                range,
                size,
                piece: PIECE,
                sender,
            };
            fetching.push(fetch.run(&retrying));
            ahead.push_back(Ahead {
                pieces,
                left,
                permit,
            });
        }
        let Some(first) = ahead.front_mut() else {
            return Ok(());
        };
        tokio::select! {
            Some(ended) = fetching.next() => match ended {
                Ended::Whole => {}
                Ended::AfterFailures => window.failed(),
                // What is complete before that range is still sent.
                Ended::Stopped => next = size,
            },
            received = first.pieces.recv(), if piece.is_none() => match received {
                Some(received) => piece = Some(received?),
                None => return Err(Interrupted::Failed(early(first.left)).into()),
            },
            place = incoming.place(), if piece.is_some() => {
                let reader_waits = place?;
                let bytes = piece.take().unwrap_or_default();
                let length = bytes.len() as u64;
                incoming.note_ranges();
                incoming.send(bytes)?;
                window.sent(length, reader_waits);
                first.left = first.left.saturating_sub(length);
                if first.left == 0 {
                    ahead.pop_front();
                    if let Some(first) = ahead.front_mut() {
                        first.permit = None;
                    }
                    window.range_ended();
                }
            }
        }
    }
}

fn early(left: u64) -> Reason {
    Reason::Broken(format!("a range ended {left} bytes early"))
}

/// Receives the bytes of a part of a blob as they come, in their order. Returns whether it wants more.
pub(crate) type Take<'a> = dyn FnMut(&[u8]) -> bool + Send + 'a;

/// Gives a range of a blob of `size` bytes to `take`, and takes it off `range`.
pub(crate) async fn part(
    source: &Source,
    url: &Url,
    range: &mut Range<u64>,
    size: u64,
    retrying: &(dyn Fn(&str, Duration) + Sync),
    take: &mut Take<'_>,
) -> Result<(), Reason> {
    if range.is_empty() {
        return Ok(());
    }
    let (sender, mut pieces) = mpsc::unbounded_channel();
    let fetch = Fetch {
        source,
        url,
        range: range.clone(),
        size,
        piece: PART_PIECE,
        sender,
    };
    let fetching = fetch.run(retrying);
    tokio::pin!(fetching);
    let mut is_over = false;
    loop {
        let piece = tokio::select! {
            biased;
            piece = pieces.recv() => piece,
            _ = &mut fetching, if !is_over => {
                is_over = true;
                continue;
            }
        };
        match piece {
            Some(Ok(bytes)) => {
                range.start += bytes.len() as u64;
                if !take(&bytes) {
                    return Ok(());
                }
            }
            Some(Err(Stopped::Unusable)) => return Err(Reason::NoRanges),
            Some(Err(Stopped::Interrupted(Interrupted::Failed(reason)))) => return Err(reason),
            Some(Err(Stopped::Interrupted(Interrupted::HungUp))) | None => break,
        }
    }
    match range.end.saturating_sub(range.start) {
        0 => Ok(()),
        left => Err(early(left)),
    }
}

/// How a range ended.
enum Ended {
    Whole,
    /// All of it is here, from more than one connection.
    AfterFailures,
    /// Its last piece is the reason.
    Stopped,
}

/// A range that is being fetched.
struct Fetch<'a> {
    source: &'a Source,
    url: &'a Url,
    /// What of it is missing.
    range: Range<u64>,
    /// Bytes of the blob.
    size: u64,
    /// Bytes that are sent at once.
    piece: usize,
    sender: mpsc::UnboundedSender<Result<Bytes, Stopped>>,
}

impl Fetch<'_> {
    /// Sends the bytes of the range, and not one more. A connection that breaks is made anew for what
    /// is missing.
    async fn run(mut self, retrying: &(dyn Fn(&str, Duration) + Sync)) -> Ended {
        let mut attempts = Attempts::new(self.source.http.transfer(), self.source.is_mirror());
        attempts.limit_to(ATTEMPTS);
        let mut ended = Ended::Whole;
        loop {
            let start = self.range.start;
            let reason = match self.attempt().await {
                Ok(()) => return ended,
                Err(Stopped::Interrupted(Interrupted::Failed(
                    reason @ (Reason::Broken(_) | Reason::Stalled(_) | Reason::Connect { .. }),
                ))) => reason,
                Err(stopped) => return self.stop(stopped),
            };
            if self.range.start - start >= PROGRESS {
                attempts.progressed();
            }
            let text = reason.to_string();
            match attempts.failed(reason) {
                Ok(pause) => {
                    retrying(&text, pause);
                    tokio::time::sleep(pause).await;
                }
                Err(reason) => return self.stop(Interrupted::Failed(reason).into()),
            }
            ended = Ended::AfterFailures;
        }
    }

    fn stop(&self, stopped: Stopped) -> Ended {
        // Without a receiver there is no reader.
        let _ = self.sender.send(Err(stopped));
        Ended::Stopped
    }

    async fn attempt(&mut self) -> Result<(), Stopped> {
        let last = self.range.end - 1;
        let asked = format!("bytes={}-{last}", self.range.start);
        let headers = HeaderMap::from_iter(HeaderValue::try_from(asked).map(|it| (RANGE, it)));
        let answer = self.source.get(self.url, &headers).await;
        let mut answer = answer.map_err(Interrupted::Failed)?;
        match answer.status().as_u16() {
            206 => {}
            // One that ignores ranges, or refuses this one.
            200 | 416 => return Err(Stopped::Unusable),
            _ => {
                let refusal = answer.refusal(|_| Reason::NoBlob).await;
                return Err(Interrupted::Failed(refusal).into());
            }
        }
        let is_it = |found: ContentRange| {
            found.first == self.range.start
                && found.last == Some(last)
                && found.total.is_none_or(|total| total == self.size)
        };
        let found = answer.header("content-range").and_then(ContentRange::parse);
        if !found.is_some_and(is_it) {
            return Err(Stopped::Unusable);
        }
        let mut piece = BytesMut::new();
        let mut left = self.range.end - self.range.start;
        loop {
            let received = answer.chunk().await;
            let is_over = !matches!(received, Ok(Some(_)));
            if let Ok(Some(bytes)) = &received {
                left = left
                    .checked_sub(bytes.len() as u64)
                    .ok_or(Stopped::Unusable)?;
                piece.extend_from_slice(bytes);
            }
            if piece.len() >= self.piece || is_over {
                self.range.start += piece.len() as u64;
                let _ = self.sender.send(Ok(piece.split().freeze()));
            }
            match received.map_err(Interrupted::Failed)? {
                Some(_) => {}
                None if left == 0 => return Ok(()),
                None => return Err(Interrupted::Failed(early(left)).into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_double_while_the_reader_waits() {
        let mut window = Window::new(6);
        let mut ranges = Vec::new();
        // Whether the reader waits during most of a range.
        for reader_waits in [false, false, true, false, true, true, true] {
            window.sent(LENGTH / 3, !reader_waits);
            window.sent(LENGTH / 3 * 2, reader_waits);
            window.range_ended();
            ranges.push(window.ranges);
        }
        assert_eq!(ranges, [2, 2, 4, 4, 6, 6, 6]);
        let mut one = Window::new(1);
        one.range_ended();
        assert_eq!(one.ranges, 1);
    }

    #[test]
    fn a_failure_halves_the_ranges_which_then_become_more_one_by_one() {
        let mut window = Window::new(8);
        let mut ranges = Vec::new();
        for fails in [false, false, false, true, true, false, false, false, true] {
            window.sent(LENGTH, true);
            if fails {
                window.failed();
            } else {
                window.range_ended();
            }
            ranges.push(window.ranges);
        }
        assert_eq!(ranges, [2, 4, 8, 4, 2, 2, 3, 4, 2]);
    }
}
