//! Blobs of layers as they are sent: made or read in pieces, each when the client has taken the one before.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::IpAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use micabox_ground::lock;
use micabox_image::export::RemadeReader;
use micabox_image::store::{KeptBlob, LayerArchive};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::Report;

/// Bytes of a piece.
const PIECE: u64 = 256 << 10;

/// Most archives that are sent at a time, and to an address of another machine: each takes a piece and zstd's window.
const TRANSFERS: usize = 256;
const TO_ONE: usize = 64;

/// How many archives are being sent.
#[derive(Debug, Default)]
pub struct Transfers(Mutex<HashMap<IpAddr, usize>>);

/// A transfer's place. It is free again when this is dropped.
#[derive(Debug)]
pub struct Transfer {
    all: Arc<Transfers>,
    address: IpAddr,
}

impl Transfers {
    /// Takes a place; `None` if there is none left.
    pub fn begin(self: &Arc<Self>, address: IpAddr) -> Option<Transfer> {
        let mut counts = self.lock();
        let ours = counts.get(&address).copied().unwrap_or_default();
        let is_full = counts.values().sum::<usize>() >= TRANSFERS;
        if is_full || (!address.is_loopback() && ours >= TO_ONE) {
            return None;
        }
        counts.insert(address, ours + 1);
        Some(Transfer {
            all: Arc::clone(self),
            address,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        lock(&self.0)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let mut counts = self.all.lock();
        match counts.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.address)),
        }
    }
}

/// A layer's blob that is made, or read, while it is sent.
pub enum Source {
    /// A blob as it came, which is read from its begin on.
    Kept(KeptBlob),
    /// An archive, which is read from its begin on.
    Archive(Box<LayerArchive>),
    /// An EROFS image, read from an offset on.
    Erofs(Box<RemadeReader>, u64),
}

impl Source {
    /// Returns the blob's length in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Kept(blob) => blob.size(),
            Self::Archive(archive) => archive.size(),
            Self::Erofs(reader, _) => reader.size(),
        }
    }

    /// Returns the layer in words.
    fn name(&self) -> String {
        match self {
            Self::Kept(blob) => format!("blob {}", blob.digest()),
            Self::Archive(archive) => format!("layer {}", archive.diff_id()),
            Self::Erofs(reader, _) => format!("EROFS image {}", reader.digest()),
        }
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        match self {
            Self::Kept(blob) => {
                blob.skip(bytes);
                Ok(())
            }
            Self::Archive(archive) => archive.skip(bytes),
            Self::Erofs(_, at) => {
                *at += bytes;
                Ok(())
            }
        }
    }

    /// Reads the next piece, of which the client wants `left` bytes and all that follow it. The last one of a whole
    /// archive, or of a whole blob that was kept, is only returned once its digest is right.
    fn piece(&mut self, left: u64) -> io::Result<Bytes> {
        let wanted = left.min(PIECE) as usize;
        match self {
            Self::Kept(blob) => {
                let piece = checked(blob, wanted, left <= PIECE);
                if matches!(&piece, Err(error) if error.kind() == io::ErrorKind::InvalidData) {
                    // It is damaged: the next request for its image brings it again.
                    blob.remove().map_err(io::Error::other)?;
                }
                piece
            }
            Self::Archive(archive) => checked(&mut **archive, wanted, left <= PIECE),
            Self::Erofs(reader, at) => {
                let bytes = reader.read(*at, wanted)?;
                if bytes.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                *at += bytes.len() as u64;
                Ok(bytes.into())
            }
        }
    }
}

/// Reads so many bytes of what has its digest checked at its end.
fn checked(source: &mut impl Read, wanted: usize, is_last: bool) -> io::Result<Bytes> {
    let mut bytes = vec![0; wanted];
    source.read_exact(&mut bytes)?;
    if is_last {
        // A range may end before that, and then nothing is checked.
        source.read(&mut [0]).map(drop)?;
    }
    Ok(bytes.into())
}

/// A part of a blob that is sent.
pub struct Sent {
    state: State,
    /// Bytes that the client has not got.
    left: u64,
    report: Report,
    /// Also of a thread that reads for a client that is gone.
    place: Arc<Transfer>,
}

enum State {
    Waiting(Source),
    Reading(JoinHandle<(Source, io::Result<Bytes>)>),
    /// It has failed, or nothing is left.
    Ended,
}

impl Sent {
    /// Sends these bytes of a blob, of which nothing was read.
    pub fn new(mut source: Source, range: Range<u64>, report: Report, place: Transfer) -> Self {
        let length = range.end - range.start;
        let place = Arc::new(place);
        let held = Arc::clone(&place);
        let state = match length {
            0 => State::Ended,
            _ if range.start == 0 => State::Waiting(source),
            // It may take long, as nothing says where in the recipe they are.
            _ => State::Reading(spawn_blocking(move || {
                let _place = held;
                let skipped = source.skip(range.start).map(|()| Bytes::new());
                (source, skipped)
            })),
        };
        Self {
            state,
            left: length,
            report,
            place,
        }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            match std::mem::replace(&mut self.state, State::Ended) {
                State::Ended => return Poll::Ready(None),
                State::Waiting(mut source) => {
                    let (left, held) = (self.left, Arc::clone(&self.place));
                    self.state = State::Reading(spawn_blocking(move || {
                        let _place = held;
                        let piece = source.piece(left);
                        (source, piece)
                    }));
                }
                State::Reading(mut reading) => {
                    let Poll::Ready(read) = Pin::new(&mut reading).poll(context) else {
                        self.state = State::Reading(reading);
                        return Poll::Pending;
                    };
                    let (source, read) = match read {
                        Ok(read) => read,
                        Err(panicked) => return Poll::Ready(Some(Err(io::Error::other(panicked)))),
                    };
                    let bytes = match read {
                        Ok(bytes) => bytes,
                        Err(error) => {
                            (self.report)(&format!("{}: {error}", source.name()));
                            return Poll::Ready(Some(Err(error)));
                        }
                    };
                    self.left = self.left.saturating_sub(bytes.len() as u64);
                    if self.left > 0 {
                        self.state = State::Waiting(source);
                    }
                    // There are none after passing over others.
                    if !bytes.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(bytes))));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Returns the bytes that a `Range` asks for of so many; `None` for all, as also for several ranges at once.
///
/// # Errors
///
/// There are no such bytes.
pub fn range(header: &str, size: u64) -> Result<Option<Range<u64>>, ()> {
    let Some((unit, range)) = header.split_once('=') else {
        return Ok(None);
    };
    let Some((first, last)) = range.split_once('-') else {
        return Ok(None);
    };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return Ok(None);
    }
    // Digits alone; what is too large for a number is beyond every blob.
    let number = |text: &str| {
        let text = text.trim();
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    match (number(first), number(last)) {
        (Some(first), _) if first >= size => Err(()),
        (Some(first), Some(last)) if last >= first => {
            Ok(Some(first..size.min(last.saturating_add(1))))
        }
        (Some(first), None) if last.trim().is_empty() => Ok(Some(first..size)),
        (None, Some(count)) if first.trim().is_empty() && count.min(size) == 0 => Err(()),
        (None, Some(count)) if first.trim().is_empty() => {
            Ok(Some(size.saturating_sub(count)..size))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_http() {
        for (header, found) in [
            ("bytes=0-0", Ok(Some(0..1))),
            ("bytes=2-", Ok(Some(2..10))),
            ("bytes=2-100", Ok(Some(2..10))),
            ("bytes=9-18446744073709551615", Ok(Some(9..10))),
            ("bytes=-3", Ok(Some(7..10))),
            ("bytes=-30", Ok(Some(0..10))),
            ("bytes=10-", Err(())),
            ("bytes=-0", Err(())),
            ("bytes=99999999999999999999999999-", Err(())),
            ("Bytes=2-3", Ok(Some(2..4))),
            ("bytes=+0-+3", Ok(None)),
            ("bytes", Ok(None)),
            ("bytes=5-4", Ok(None)),
            ("bytes=0-1,3-4", Ok(None)),
            ("bytes=x-", Ok(None)),
            ("bytes=-", Ok(None)),
            ("lines=0-1", Ok(None)),
        ] {
            assert_eq!(range(header, 10), found, "{header}");
        }
        for header in ["bytes=0-", "bytes=-7"] {
            assert_eq!(range(header, 0), Err(()), "{header}");
        }
    }

    #[test]
    fn one_address_leaves_transfers_to_others() {
        let all = Arc::new(Transfers::default());
        let at = |last: u8| IpAddr::from([192, 0, 2, last]);
        let held: Vec<_> = std::iter::from_fn(|| all.begin(at(1))).collect();
        assert_eq!(held.len(), TO_ONE);
        let others: Vec<_> = std::iter::from_fn(|| all.begin([127, 0, 0, 1].into())).collect();
        assert_eq!(held.len() + others.len(), TRANSFERS);
        assert!(all.begin(at(2)).is_none());
        drop(held);
        assert!(all.begin(at(2)).is_some());
        drop(others);
        assert!(all.lock().is_empty());
    }
}
