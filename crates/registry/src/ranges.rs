//! Fetches one large blob on several connections, a range on each.
//!
//! The reader gets the bytes in their order, as from one connection, and checks the digest of them
//! all. The first range is asked for alone: a registry whose answer is anything but that range gets
//! the blob's request as before. Then there are two, and twice as many after each range during
//! which the reader mostly waited.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use reqwest::header::{HeaderMap, HeaderValue, RANGE};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use url::Url;

use crate::Source;
use crate::error::Reason;
use crate::transfer::{ContentRange, Incoming, Interrupted};

/// Bytes of a range. All of one may wait in memory for its turn.
pub(crate) const LENGTH: u64 = 8 << 20;

/// Why ranges end before the blob does.
pub(crate) enum Stopped {
    /// The registry's answer isn't the range that was asked for.
    Unusable,
    Interrupted(Interrupted),
}

impl From<Reason> for Stopped {
    fn from(reason: Reason) -> Self {
        Self::Interrupted(reason.into())
    }
}

/// How many ranges are fetched at the same time.
pub(crate) struct Window {
    pub(crate) ranges: usize,
    most: usize,
    /// Bytes since the last change, and those of them for which the reader waited.
    sent: u64,
    awaited: u64,
}

impl Window {
    /// Begins with one range of at most `most`.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            ranges: 1,
            most,
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
        (self.sent, self.awaited) = (0, 0);
    }
}

/// A range whose bytes come in while earlier ones are sent to the reader.
struct Ahead {
    pieces: mpsc::UnboundedReceiver<Bytes>,
    /// Bytes that the reader lacks.
    left: u64,
}

/// Sends the rest of the blob to the reader. A connection beyond the first takes a permit of
/// `extra`, which all blobs of an image share.
pub(crate) async fn run(
    incoming: &mut Incoming<'_>,
    source: &Source,
    url: &Url,
    extra: &Semaphore,
    window: &mut Window,
) -> Result<(), Stopped> {
    let size = incoming.size;
    let mut next = incoming.offset();
    let mut fetching = FuturesUnordered::new();
    let mut ahead: VecDeque<Ahead> = VecDeque::new();
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
            // Holds no more than the range.
            let (sender, pieces) = mpsc::unbounded_channel();
            let left = range.end - range.start;
            fetching.push(fetch(source, url, range, size, sender, permit));
            ahead.push_back(Ahead { pieces, left });
        }
        let Some(first) = ahead.front_mut() else {
            return Ok(());
        };
        tokio::select! {
            Some(ended) = fetching.next() => ended?,
            received = first.pieces.recv(), if piece.is_none() => match received {
                Some(bytes) => piece = Some(bytes),
                // Its error comes first; without one, it has all of its bytes.
                None => return Err(Reason::Broken("a range ended early".to_owned()).into()),
            },
            place = incoming.place(), if piece.is_some() => {
                let reader_waits = place.map_err(Stopped::Interrupted)?;
                let bytes = piece.take().unwrap_or_default();
                let length = bytes.len() as u64;
                incoming.note_ranges();
                incoming.send(bytes).map_err(Stopped::Interrupted)?;
                window.sent(length, reader_waits);
                first.left = first.left.saturating_sub(length);
                if first.left == 0 {
                    ahead.pop_front();
                    window.range_ended();
                }
            }
        }
    }
}

/// Sends the bytes of `range` of a blob of `size` bytes, and not one more.
async fn fetch(
    source: &Source,
    url: &Url,
    range: Range<u64>,
    size: u64,
    sender: mpsc::UnboundedSender<Bytes>,
    _permit: Option<SemaphorePermit<'_>>,
) -> Result<(), Stopped> {
    let last = range.end - 1;
    let asked = format!("bytes={}-{last}", range.start);
    let headers = HeaderMap::from_iter(HeaderValue::try_from(asked).ok().map(|it| (RANGE, it)));
    let mut answer = source.get(url, &headers).await?;
    match answer.status().as_u16() {
        206 => {}
        // One that ignores ranges, or refuses this one.
        200 | 416 => return Err(Stopped::Unusable),
        _ => return Err(answer.refusal(|_| Reason::NoBlob).await.into()),
    }
    let is_it = |found: ContentRange| {
        found.first == range.start
            && found.last == Some(last)
            && found.total.is_none_or(|total| total == size)
    };
    let found = answer.header("content-range").and_then(ContentRange::parse);
    if !found.is_some_and(is_it) {
        return Err(Stopped::Unusable);
    }
    let mut left = range.end - range.start;
    while let Some(piece) = answer.chunk().await? {
        left = left
            .checked_sub(piece.len() as u64)
            .ok_or(Stopped::Unusable)?;
        // One that is not received any more needs no bytes.
        let _ = sender.send(piece);
    }
    match left {
        0 => Ok(()),
        left => Err(Reason::Broken(format!("a range ended {left} bytes early")).into()),
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
}
