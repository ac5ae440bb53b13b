//! Turns a blob into its verified uncompressed bytes, on three threads: one reads, hashes and
//! inflates the blob, one hashes the result, and the caller's consumes it.
//!
//! A fixed set of buffers circulates: the inflating thread fills a buffer, the hashing thread
//! passes it on, the consumer returns it. So memory is bounded, nothing is allocated or copied on
//! the way, and the slowest thread sets the pace. A blob that isn't compressed and that another
//! process hashes is consumed in place.

use std::io::{self, BufRead, Read};
use std::panic;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use micabox_jail::{Feed, NoRoom};

use super::decompress::{Compression, Decoder, Gzip, MAGIC_LENGTH, Zstd};
use super::error::Reason;
use super::source::{BUFFER, Blob, Expected, Source, Tally};
use crate::Limits;
use crate::limits::Limit;
use micabox_oci::{Digest, Hasher};

/// Two for each thread: one in use, one waiting.
const BUFFERS: usize = 6;

/// Bytes of a blob that are read at a time: so many that the reader doesn't copy them through a
/// buffer of its own.
pub(super) const READ: usize = BUFFER / 2;

/// Runs `consume` on the uncompressed bytes of the blob in `source`. Also returns the blob's size
/// in bytes.
///
/// Both digests and the size are checked over the whole blob, whatever `consume` leaves unread. If
/// `consume` fails in a way that damage explains, a wrong digest is reported in place of that
/// failure.
pub(super) fn run<S: BufRead + Send, T>(
    mut source: S,
    expected: Expected<'_>,
    limits: &Limits,
    consume: impl FnOnce(&mut dyn BufRead) -> Result<T, Reason>,
) -> Result<(T, u64), Reason> {
    let mut head = Vec::new();
    let mut first = source.by_ref().take(MAGIC_LENGTH as u64);
    first.read_to_end(&mut head).map_err(Reason::Source)?;
    let compression = Compression::detect(&head).map_err(Reason::Compression)?;
    let source = Source::new((&head[..]).chain(source), expected);
    if compression == Compression::None && expected.hashed_by_caller {
        return run_plain(source, limits, consume);
    }
    let (free, free_buffers) = channel();
    let (full, full_buffers) = channel();
    let (hashed, hashed_buffers) = channel();
    for _ in 0..BUFFERS {
        // Can't fail: the receiver exists.
        let _ = free.send(Buffer {
            bytes: vec![0; BUFFER].into(),
            filled: 0,
        });
    }

    thread::scope(|scope| {
        let spawn = |name: &str| thread::Builder::new().name(name.into());
        let inflating = spawn("layer-inflate")
            .spawn_scoped(scope, move || {
                inflate(source, compression, limits, &free_buffers, &full)
            })
            .map_err(Reason::Source)?;
        let hashing = spawn("layer-hash")
            .spawn_scoped(scope, move || hash(&full_buffers, &hashed))
            .map_err(Reason::Source)?;

        let mut uncompressed = Uncompressed {
            buffers: hashed_buffers,
            free,
            current: None,
            at: 0,
        };
        let consumed = consume(&mut uncompressed);
        match &consumed {
            // The rest of the blob can't change this error; dropping the channels ends the threads.
            Err(reason) if !reason.may_be_damage() => {}
            _ => while uncompressed.next_buffer() {},
        }
        drop(uncompressed);

        let blob = inflating
            .join()
            .unwrap_or_else(|payload| panic::resume_unwind(payload));
        let diff_id = hashing
            .join()
            .unwrap_or_else(|payload| panic::resume_unwind(payload));
        let blob = match (blob, consumed) {
            (Err(Stopped::Because(reason)), _) => return Err(reason),
            (_, Err(reason)) if !reason.may_be_damage() => return Err(reason),
            (Err(Stopped::HungUp), consumed) => return consumed.map(|made| (made, 0)),
            (Ok(blob), consumed) => (blob, consumed),
        };
        let (blob, consumed) = blob;
        // Without compression there is one stream with one digest.
        let actual = blob.digest.unwrap_or(diff_id);
        if expected.is_other(actual) {
            return Err(Reason::BlobDigest { actual });
        }
        if diff_id != expected.what.diff_id {
            return Err(Reason::DiffId {
                expected: expected.what.diff_id,
                actual: diff_id,
            });
        }
        consumed.map(|made| (made, blob.size))
    })
}

/// Does the work of [`run`] for a blob that isn't compressed and that another process hashes.
fn run_plain<S: BufRead, T>(
    source: Source<'_, S>,
    limits: &Limits,
    consume: impl FnOnce(&mut dyn BufRead) -> Result<T, Reason>,
) -> Result<(T, u64), Reason> {
    let mut plain = Plain {
        source,
        limits,
        stopped: None,
    };
    let consumed = consume(&mut plain);
    if !matches!(&consumed, Err(reason) if !reason.may_be_damage()) {
        // Read errors are in `stopped`.
        while let Ok(count @ 1..) = plain.fill_buf().map(<[u8]>::len) {
            plain.consume(count);
        }
    }
    match plain.stopped {
        Some(reason) => Err(reason),
        None => consumed.map(|made| (made, plain.source.tally.got)),
    }
}

/// The uncompressed blob's bytes, in place. After an error they end early, and `stopped` has the
/// reason.
struct Plain<'a, S> {
    source: Source<'a, S>,
    limits: &'a Limits,
    stopped: Option<Reason>,
}

impl<S: BufRead> BufRead for Plain<'_, S> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.stopped.is_some() {
            return Ok(&[]);
        }
        let filled = self.source.fill().and_then(|()| {
            let got = self.source.tally.got;
            check_size(got, got, self.limits)
        });
        if let Err(reason) = filled {
            self.stopped = Some(reason);
            return Ok(&[]);
        }
        Ok(self.source.buffer())
    }

    fn consume(&mut self, count: usize) {
        self.source.consume(count);
    }
}

impl<S: BufRead> Read for Plain<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

/// A blob that was passed on completely.
pub(super) struct Passed {
    digest: Digest,
    plain: bool,
}

impl Passed {
    /// Checks what can be checked without decompressing.
    pub(super) fn check(&self, expected: Expected<'_>) -> Result<(), Reason> {
        let actual = self.digest;
        if expected.is_other(actual) {
            return Err(Reason::BlobDigest { actual });
        }
        if self.plain && actual != expected.what.diff_id {
            return Err(Reason::DiffId {
                expected: expected.what.diff_id,
                actual,
            });
        }
        Ok(())
    }
}

/// Passes the blob in `source` to a worker and hashes it. Returns `None` if the worker closes its
/// end early, or if `keep_going` returns false; `keep_going` is called once a second while there is no room.
pub(super) fn pass(
    mut source: impl Read,
    expected: Expected<'_>,
    feed: &mut Feed,
    mut keep_going: impl FnMut(u64) -> bool,
) -> Result<Option<Passed>, Reason> {
    let mut tally = Tally::new(expected);
    let mut plain = None;
    let passed = |error| match error {
        NoRoom::Closed | NoRoom::GivenUp => Ok(None),
        error => Err(Reason::Worker(error.to_string())),
    };
    loop {
        let got = tally.got;
        let room = match feed.room(|| keep_going(got)) {
            Ok(room) => room,
            Err(error) => return passed(error),
        };
        let count = tally.fill(&mut source, room)?;
        let is_last = count < room.len();
        let is_plain = *plain.get_or_insert_with(|| {
            let head = &room[..count.min(MAGIC_LENGTH)];
            Compression::detect(head) == Ok(Compression::None)
        });
        if count > 0
            && let Err(error) = feed.hand_over(count)
        {
            return passed(error);
        }
        if is_last {
            feed.end();
            let digest = tally.finish().digest;
            return Ok(digest.map(|digest| Passed {
                digest,
                plain: is_plain,
            }));
        }
    }
}

struct Buffer {
    bytes: Box<[u8]>,
    filled: usize,
}

/// Why the inflating thread did not reach the blob's end.
enum Stopped {
    /// The consumer stopped reading.
    HungUp,
    Because(Reason),
}

impl From<Reason> for Stopped {
    fn from(reason: Reason) -> Self {
        Self::Because(reason)
    }
}

/// Fills buffers with the uncompressed bytes of the blob.
fn inflate<S: BufRead>(
    mut source: Source<'_, S>,
    compression: Compression,
    limits: &Limits,
    free: &Receiver<Buffer>,
    full: &Sender<Buffer>,
) -> Result<Blob, Stopped> {
    let mut decoder = match compression {
        Compression::None => return pass_on(source, limits, free, full),
        Compression::Gzip => Decoder::Gzip(Gzip::new()),
        Compression::Zstd => {
            let decoder = Zstd::new(limits.zstd_window).map_err(Reason::Source)?;
            Decoder::Zstd(decoder)
        }
    };

    let mut total = 0u64;
    let mut buffer = free.recv().map_err(|_| Stopped::HungUp)?;
    loop {
        source.fill()?;
        let input = source.buffer();
        let is_end = input.is_empty();
        let step = match decoder.step(input, &mut buffer.bytes[buffer.filled..]) {
            Ok(step) => step,
            Err(error) => return Err(source.blame(&error, limits).into()),
        };
        source.consume(step.consumed);
        buffer.filled += step.produced;
        total += step.produced as u64;
        check_size(total, source.tally.got, limits)?;
        if buffer.filled == buffer.bytes.len() {
            full.send(buffer).map_err(|_| Stopped::HungUp)?;
            buffer = free.recv().map_err(|_| Stopped::HungUp)?;
            buffer.filled = 0;
        } else if is_end && (step.consumed, step.produced) == (0, 0) {
            break;
        }
    }
    if let Err(error) = decoder.finish() {
        return Err(source.blame(&error, limits).into());
    }
    full.send(buffer).map_err(|_| Stopped::HungUp)?;
    Ok(source.tally.finish())
}

/// Does the work of [`inflate`] for a blob that isn't compressed.
fn pass_on<S: BufRead>(
    mut source: Source<'_, S>,
    limits: &Limits,
    free: &Receiver<Buffer>,
    full: &Sender<Buffer>,
) -> Result<Blob, Stopped> {
    // The uncompressed bytes are the same, and are hashed by the other thread.
    source.tally.hasher = None;
    loop {
        let mut buffer = free.recv().map_err(|_| Stopped::HungUp)?;
        buffer.filled = source.tally.fill(&mut source.inner, &mut buffer.bytes)?;
        let got = source.tally.got;
        check_size(got, got, limits)?;
        if buffer.filled == 0 {
            return Ok(source.tally.finish());
        }
        full.send(buffer).map_err(|_| Stopped::HungUp)?;
    }
}

/// Checks the sizes against the limits on a layer's size and compression ratio.
pub(super) fn check_size(
    uncompressed: u64,
    compressed: u64,
    limits: &Limits,
) -> Result<(), Reason> {
    let exceeded = |setting, limit| {
        Err(Reason::Limit {
            setting,
            limit,
            entry: None,
        })
    };
    if uncompressed > limits.layer_size {
        return exceeded(Limit::LayerSize, limits.layer_size);
    }
    if uncompressed > limits.compression_ratio_from
        && uncompressed / limits.compression_ratio.max(1) > compressed
    {
        return exceeded(Limit::CompressionRatio, limits.compression_ratio);
    }
    Ok(())
}

/// Hashes the buffers that pass through.
fn hash(full: &Receiver<Buffer>, hashed: &Sender<Buffer>) -> Digest {
    let mut hasher = Hasher::new();
    for buffer in full {
        hasher.update(&buffer.bytes[..buffer.filled]);
        if hashed.send(buffer).is_err() {
            break;
        }
    }
    hasher.finish()
}

/// The uncompressed bytes. If the blob can't be read to its end, they end early without an error:
/// [`run`] has the reason.
struct Uncompressed {
    buffers: Receiver<Buffer>,
    free: Sender<Buffer>,
    current: Option<Buffer>,
    at: usize,
}

impl Uncompressed {
    /// Returns the current buffer and waits for the next one.
    fn next_buffer(&mut self) -> bool {
        if let Some(buffer) = self.current.take() {
            // The receiver is gone once the blob has ended.
            let _ = self.free.send(buffer);
        }
        self.at = 0;
        self.current = self.buffers.recv().ok();
        self.current.is_some()
    }

    fn rest(&self) -> &[u8] {
        self.current
            .as_ref()
            .map_or(&[], |buffer| &buffer.bytes[self.at..buffer.filled])
    }
}

impl BufRead for Uncompressed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.rest().is_empty() && self.next_buffer() {}
        Ok(self.rest())
    }

    fn consume(&mut self, count: usize) {
        self.at += count.min(self.rest().len());
    }
}

impl Read for Uncompressed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut available = self.fill_buf()?;
        let count = available.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}
