//! From a blob to its verified uncompressed bytes, three things at a time: one thread reads,
//! hashes and inflates the blob, one hashes what comes out, and the caller's consumes it.
//!
//! A fixed set of buffers goes round: the inflating thread fills one, the hashing thread
//! passes it on, the consumer hands it back. So memory is bounded, nothing is allocated or
//! copied on the way, and whoever is slowest sets the pace.

use std::io::{self, BufRead, Read};
use std::panic;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::decompress::{self, Compression, Decoder, Gzip, MAGIC_LENGTH, Zstd};
use super::error::Reason;
use crate::digest::{Digest, Hasher};
use crate::limits::Limits;

/// Large enough that passing a buffer on costs nothing, small enough to stay in the cache.
const BUFFER: usize = 512 << 10;
/// Two for each thread: one to work on, one to wait.
const BUFFERS: usize = 6;

/// What a blob must turn out to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub blob_digest: Option<Digest>,
    pub blob_size: Option<u64>,
    pub diff_id: Digest,
    /// Whoever feeds the blob hashes it, and so knows the diff ID of one that isn't compressed.
    pub hashed_by_caller: bool,
}

/// Runs `consume` on the uncompressed bytes of the blob in `source`. Returns the blob's size
/// in bytes too.
///
/// Both digests and the size are checked over the blob to its very end, whatever `consume`
/// leaves unread. If `consume` fails in a way that damage explains, a wrong digest is the
/// error instead of what it led to.
pub(super) fn run<S: Read + Send, T>(
    source: S,
    expected: Expected,
    limits: &Limits,
    consume: impl FnOnce(&mut Uncompressed) -> Result<T, Reason>,
) -> Result<(T, u64), Reason> {
    let (free, free_buffers) = channel();
    let (full, full_buffers) = channel();
    let (hashed, hashed_buffers) = channel();
    for _ in 0..BUFFERS {
        // Can't fail: the receiver is right here.
        let _ = free.send(Buffer {
            bytes: vec![0; BUFFER].into(),
            filled: 0,
            hash: true,
        });
    }

    thread::scope(|scope| {
        let source = Source::new(source, expected);
        let spawn = |name: &str| thread::Builder::new().name(name.into());
        let inflating = spawn("layer-inflate")
            .spawn_scoped(scope, move || inflate(source, limits, &free_buffers, &full))
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
            // Nothing that follows could change this; hanging up ends the threads.
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
        // Without compression there is one stream and one digest of it.
        let actual = blob.digest.unwrap_or(diff_id);
        if expected
            .blob_digest
            .is_some_and(|expected| expected != actual)
        {
            return Err(Reason::BlobDigest { actual });
        }
        let is_hashed = !(blob.plain && expected.hashed_by_caller);
        if is_hashed && diff_id != expected.diff_id {
            return Err(Reason::DiffId {
                expected: expected.diff_id,
                actual: diff_id,
            });
        }
        consumed.map(|made| (made, blob.size))
    })
}

/// Reads the blob in `source` to its end, and checks its size and digest only.
pub(super) fn read(source: impl Read, expected: Expected) -> Result<(), Reason> {
    let mut source = Source::new(source, expected);
    let mut buffer = vec![0; BUFFER];
    while source.read(&mut buffer)? > 0 {}
    match source.finish().digest {
        Some(actual)
            if expected
                .blob_digest
                .is_some_and(|expected| expected != actual) =>
        {
            Err(Reason::BlobDigest { actual })
        }
        _ => Ok(()),
    }
}

/// A blob that was read to its end.
struct Blob {
    /// None if it is that of the uncompressed bytes.
    digest: Option<Digest>,
    /// In bytes.
    size: u64,
    /// It is not compressed.
    plain: bool,
}

/// A blob that was passed on to its end.
pub(super) struct Passed {
    digest: Digest,
    plain: bool,
}

impl Passed {
    /// Checks what can be told without uncompressing.
    pub(super) fn check(&self, expected: Expected) -> Result<(), Reason> {
        let actual = self.digest;
        if expected
            .blob_digest
            .is_some_and(|expected| expected != actual)
        {
            return Err(Reason::BlobDigest { actual });
        }
        if self.plain && actual != expected.diff_id {
            return Err(Reason::DiffId {
                expected: expected.diff_id,
                actual,
            });
        }
        Ok(())
    }
}

/// Gives the blob in `source` to `sink` and hashes it, as long as the sink returns `true`.
/// `None` if it did not to the end.
pub(super) fn pass(
    source: impl Read,
    expected: Expected,
    mut sink: impl FnMut(&[u8]) -> bool,
) -> Result<Option<Passed>, Reason> {
    let mut source = Source::new(source, expected);
    let mut buffer = vec![0; BUFFER];
    let mut count = source.fill(&mut buffer[..MAGIC_LENGTH])?;
    let plain = Compression::detect(&buffer[..count]) == Ok(Compression::None);
    while count > 0 {
        if !sink(&buffer[..count]) {
            return Ok(None);
        }
        count = source.read(&mut buffer)?;
    }
    let digest = source.finish().digest;
    Ok(digest.map(|digest| Passed { digest, plain }))
}

struct Buffer {
    bytes: Box<[u8]>,
    filled: usize,
    /// Whether it is part of the diff ID that is computed here.
    hash: bool,
}

/// Why the inflating thread did not get to the blob's end.
enum Stopped {
    /// The consumer gave up.
    HungUp,
    Because(Reason),
}

impl From<Reason> for Stopped {
    fn from(reason: Reason) -> Self {
        Self::Because(reason)
    }
}

/// A blob as it comes in: hashed, counted, and never longer than declared.
struct Source<S> {
    inner: S,
    expected: Expected,
    got: u64,
    /// None if the uncompressed bytes are the same and hashed anyway.
    hasher: Option<Hasher>,
}

impl<S: Read> Source<S> {
    fn new(inner: S, expected: Expected) -> Self {
        Self {
            inner,
            expected,
            got: 0,
            hasher: (!expected.hashed_by_caller).then(Hasher::new),
        }
    }

    /// Reads some bytes; 0 is the blob's end, where its length is right.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Reason> {
        let count = loop {
            match self.inner.read(buffer) {
                Ok(count) => break count.min(buffer.len()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Reason::Source(error)),
            }
        };
        self.got += count as u64;
        match self.expected.blob_size {
            Some(declared) if self.got > declared => return Err(Reason::TooLong { declared }),
            Some(declared) if count == 0 && self.got < declared => {
                return Err(Reason::TooShort {
                    declared,
                    got: self.got,
                });
            }
            _ => {}
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..count]);
        }
        Ok(count)
    }

    /// Reads until `buffer` is full or the blob ends.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, Reason> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    fn finish(self) -> Blob {
        Blob {
            digest: self.hasher.map(Hasher::finish),
            size: self.got,
            plain: false,
        }
    }

    /// Compressed data made no sense: damage on the way, which the digest over the rest of
    /// it tells, or done by whoever compressed it.
    fn blame(mut self, error: &decompress::Error, buffer: &mut [u8], limits: &Limits) -> Reason {
        loop {
            match self.read(buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(reason) => return reason,
            }
        }
        let expected = self.expected.blob_digest;
        match self.finish().digest {
            Some(actual) if expected.is_some_and(|expected| expected != actual) => {
                Reason::BlobDigest { actual }
            }
            _ if matches!(error, decompress::Error::ZstdWindow) => Reason::Limit {
                setting: "zstd-window",
                limit: limits.zstd_window,
                entry: None,
            },
            _ => Reason::Compressed(error.to_string()),
        }
    }
}

/// Fills buffers with what the blob holds uncompressed.
fn inflate<S: Read>(
    mut source: Source<S>,
    limits: &Limits,
    free: &Receiver<Buffer>,
    full: &Sender<Buffer>,
) -> Result<Blob, Stopped> {
    let mut input = vec![0; BUFFER].into_boxed_slice();
    let head = source.fill(&mut input[..MAGIC_LENGTH])?;
    let compression = Compression::detect(&input[..head])
        .map_err(|unsupported| Reason::Compression(unsupported.0))?;
    let mut decoder = match compression {
        Compression::None => {
            source.hasher = None;
            return pass_on(source, &input[..head], limits, free, full);
        }
        Compression::Gzip => Decoder::Gzip(Gzip::new()),
        Compression::Zstd => {
            let decoder = Zstd::new(limits.zstd_window).map_err(Reason::Source)?;
            Decoder::Zstd(decoder)
        }
    };

    let mut pending = 0..head;
    let mut total = 0u64;
    let mut buffer = free.recv().map_err(|_| Stopped::HungUp)?;
    loop {
        let room = &mut buffer.bytes[buffer.filled..];
        let step = match decoder.step(&input[pending.clone()], room) {
            Ok(step) => step,
            Err(error) => return Err(source.blame(&error, &mut input, limits).into()),
        };
        pending.start += step.consumed;
        buffer.filled += step.produced;
        total += step.produced as u64;
        check_size(total, source.got, limits)?;
        if buffer.filled == buffer.bytes.len() {
            full.send(buffer).map_err(|_| Stopped::HungUp)?;
            buffer = free.recv().map_err(|_| Stopped::HungUp)?;
            buffer.filled = 0;
        } else if pending.is_empty() && (step.consumed, step.produced) == (0, 0) {
            pending = 0..source.read(&mut input)?;
            if pending.is_empty() {
                break;
            }
        }
    }
    if let Err(error) = decoder.finish() {
        return Err(source.blame(&error, &mut input, limits).into());
    }
    full.send(buffer).map_err(|_| Stopped::HungUp)?;
    Ok(source.finish())
}

/// What [`inflate`] does with a blob that isn't compressed.
fn pass_on<S: Read>(
    mut source: Source<S>,
    head: &[u8],
    limits: &Limits,
    free: &Receiver<Buffer>,
    full: &Sender<Buffer>,
) -> Result<Blob, Stopped> {
    let mut head = head;
    loop {
        let mut buffer = free.recv().map_err(|_| Stopped::HungUp)?;
        let (front, room) = buffer.bytes.split_at_mut(head.len());
        front.copy_from_slice(head);
        buffer.filled = head.len() + source.fill(room)?;
        head = &[];
        check_size(source.got, source.got, limits)?;
        buffer.hash = !source.expected.hashed_by_caller;
        if buffer.filled == 0 {
            return Ok(Blob {
                plain: true,
                ..source.finish()
            });
        }
        full.send(buffer).map_err(|_| Stopped::HungUp)?;
    }
}

/// Whether so many bytes may come out of so many.
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
        return exceeded("layer-size", limits.layer_size);
    }
    if uncompressed > limits.compression_ratio_from
        && uncompressed / limits.compression_ratio.max(1) > compressed
    {
        return exceeded("compression-ratio", limits.compression_ratio);
    }
    Ok(())
}

/// Hashes what passes by.
fn hash(full: &Receiver<Buffer>, hashed: &Sender<Buffer>) -> Digest {
    let mut hasher = Hasher::new();
    for buffer in full {
        if buffer.hash {
            hasher.update(&buffer.bytes[..buffer.filled]);
        }
        if hashed.send(buffer).is_err() {
            break;
        }
    }
    hasher.finish()
}

/// The uncompressed bytes. Ends early, without an error, if the blob can't be read to its
/// end: [`run`] knows why.
pub(super) struct Uncompressed {
    buffers: Receiver<Buffer>,
    free: Sender<Buffer>,
    current: Option<Buffer>,
    at: usize,
}

impl Uncompressed {
    /// Gives the current buffer back and waits for the next one.
    fn next_buffer(&mut self) -> bool {
        if let Some(buffer) = self.current.take() {
            // Nobody takes it any more once the blob has ended.
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
