#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod ask;
mod parts;
pub mod pieces;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use micabox_erofs::ReadAt;
use micabox_fuse::message::{Attributes, MOST_DATA, Reply, Request, Until};
use micabox_fuse::{Answer, Offer, Server, flag, opcode};
use rustix::io::Errno;

pub use parts::Parts;

/// The root directory's number; the first file's is the next one.
const ROOT: u64 = 1;

const DIRECTORY: u32 = 0o040_555;
const FILE: u32 = 0o100_444;

/// The kernel may keep what it has cached when a file is opened again (`FOPEN_KEEP_CACHE`).
const KEEP_CACHE: u32 = 1 << 1;

/// Nothing has to be written when a file is closed (`FOPEN_NOFLUSH`). Otherwise the kernel asks when the process that serves
/// closes its own descriptor: killed then, it would wait for its own answer and never end.
const NO_FLUSH: u32 = 1 << 5;

/// Requests that the kernel sends without waiting for them: pages that it reads ahead. Fewer than the threads of who
/// serves what is far away, so that others find one.
const BACKGROUND: u16 = 16;

/// How long the kernel may cache names, lengths and permissions, which never change.
const ALWAYS: Until = Until::Time(Duration::from_secs(1 << 31));

/// Where to seek to (lseek(2)).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// What a file's bytes come from.
pub trait Source: ReadAt {
    /// Returns the first run of bytes that may be no zeros and ends behind an offset; none if there is none. All of them
    /// are one run, unless the source knows better.
    ///
    /// # Errors
    ///
    /// Those of the source's length.
    fn data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let size = self.size()?;
        Ok((offset < size).then_some(0..size))
    }
}

/// The files, and what happens to them.
pub struct Files<S> {
    files: Vec<File<S>>,
    open_count: AtomicU64,
    reads: AtomicU64,
    /// Called when no file is open any more.
    unused: Box<dyn Fn() + Send + Sync>,
    /// Called when a file can't be read, with its number.
    failed: Box<Failed>,
}

type Failed = dyn Fn(usize, &io::Error) + Send + Sync;

struct File<S> {
    source: S,
    size: u64,
}

impl<S: Source> Files<S> {
    /// Makes files of sources, whose lengths stay as they are. `unused` is called each time that the last open file is
    /// closed; `failed` with the number of a file, from 0, and the error of each read that its source refuses, or that
    /// waits for room on a full disk.
    ///
    /// # Errors
    ///
    /// Those of a source's length.
    pub fn new(
        sources: Vec<S>,
        unused: impl Fn() + Send + Sync + 'static,
        failed: impl Fn(usize, &io::Error) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let files = sources.into_iter().map(|source| {
            let size = source.size()?;
            Ok(File { source, size })
        });
        Ok(Self {
            files: files.collect::<io::Result<_>>()?,
            open_count: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            unused: Box::new(unused),
            failed: Box::new(failed),
        })
    }

    /// Returns how often files are open, in any process, mappings included.
    pub fn open_count(&self) -> u64 {
        self.open_count.load(Ordering::SeqCst)
    }

    /// Returns how many reads there have been: what the kernel has cached is not among them.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Returns how many files there are.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the size in bytes of a file, by its number from 0.
    pub(crate) fn size(&self, number: usize) -> Option<u64> {
        self.files.get(number).map(|file| file.size)
    }

    /// Reads from a file's source. Of a read that fails the reason is reported first: who sees the error finds it.
    pub(crate) fn read_source(
        &self,
        number: usize,
        buffer: &mut [u8],
        offset: u64,
    ) -> io::Result<()> {
        let file = self.files.get(number).ok_or(io::ErrorKind::NotFound)?;
        let read = file.source.read_exact_at(buffer, offset);
        if let Err(error) = &read {
            self.report(number, error);
        }
        read
    }

    /// Reports why reading a file fails, or waits.
    pub(crate) fn report(&self, number: usize, error: &io::Error) {
        (self.failed)(number, error);
    }

    /// Returns a file by its inode number.
    fn file(&self, node: u64) -> Result<(usize, &File<S>), Errno> {
        let number = node.checked_sub(ROOT + 1).ok_or(Errno::ISDIR)? as usize;
        Ok((number, self.files.get(number).ok_or(Errno::STALE)?))
    }

    fn attributes(&self, node: u64) -> Result<Attributes, Errno> {
        let (mode, size) = match node {
            ROOT => (DIRECTORY, 0),
            _ => (FILE, self.file(node)?.1.size),
        };
        Ok(Attributes {
            number: node,
            size,
            blocks: size.div_ceil(512),
            mode,
            links: 1,
            block_size: 4096,
            ..Attributes::default()
        })
    }

    fn look_up(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut body = request.body;
        let name = body.name()?.to_str().map_err(|_| Errno::NOENT)?;
        let is_file = |number: &usize| number.to_string() == name;
        let number = (0..self.files.len()).find(is_file).ok_or(Errno::NOENT)?;
        let node = ROOT + 1 + number as u64;
        let mut reply = Reply::new();
        reply.entry(node, &self.attributes(node)?, ALWAYS, ALWAYS);
        Ok(reply)
    }

    fn open(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        self.file(request.node)?;
        self.open_count.fetch_add(1, Ordering::SeqCst);
        let mut reply = Reply::new();
        reply.u64(0);
        reply.u32(KEEP_CACHE | NO_FLUSH);
        reply.u32(0);
        Ok(reply)
    }

    fn release(&self) -> Reply {
        if self.open_count.fetch_sub(1, Ordering::SeqCst) == 1 {
            (self.unused)();
        }
        Reply::new()
    }

    /// Finds data, or a hole.
    fn seek(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let (_, file) = self.file(request.node)?;
        let mut body = request.body;
        let (_handle, offset, whence) = (body.u64()?, body.u64()?, body.u32()?);
        if offset >= file.size {
            return Err(Errno::NXIO);
        }
        let data = file.source.data(offset).map_err(|_| Errno::IO)?;
        let place = match (whence, data) {
            (SEEK_DATA, Some(run)) => run.start.max(offset),
            (SEEK_DATA, None) => return Err(Errno::NXIO),
            (SEEK_HOLE, Some(run)) if run.start <= offset => run.end.min(file.size),
            (SEEK_HOLE, _) => offset,
            // The kernel knows the others itself.
            _ => return Err(Errno::INVAL),
        };
        let mut reply = Reply::new();
        reply.u64(place);
        Ok(reply)
    }

    fn read(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let (number, file) = self.file(request.node)?;
        let mut body = request.body;
        let (_handle, offset, size) = (body.u64()?, body.u64()?, body.u32()?);
        let size = u64::from(size.min(MOST_DATA)).min(file.size.saturating_sub(offset)) as u32;
        let mut reply = Reply::new();
        reply.fill(size, |buffer| {
            let read = self.read_source(number, buffer, offset);
            read.map(|()| buffer.len()).map_err(|_| Errno::IO)
        })?;
        Ok(reply)
    }
}

impl<S: Source + Sync> Server for Files<S> {
    fn offer(&self) -> Offer {
        Offer {
            flags: flag::ASYNC_READ | flag::NO_OPENDIR_SUPPORT | flag::OVER_IO_URING,
            background: BACKGROUND,
        }
    }

    fn needs_written(&self, _: &Request<'_>) -> bool {
        false
    }

    fn serve(&self, request: &Request<'_>, answer: Option<Answer<'_>>) {
        let Some(answer) = answer else {
            // Nothing to forget: numbers are those of the files.
            return;
        };
        answer.reply(match request.opcode {
            opcode::READ => self.read(request),
            opcode::LOOKUP => self.look_up(request),
            opcode::GETATTR => self.attributes(request.node).map(|attributes| {
                let mut reply = Reply::new();
                reply.only_attributes(&attributes, ALWAYS);
                reply
            }),
            opcode::OPEN => self.open(request),
            opcode::RELEASE => Ok(self.release()),
            opcode::LSEEK => self.seek(request),
            _ => Err(Errno::NOSYS),
        });
    }
}

impl<S> std::fmt::Debug for Files<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files")
            .field("files", &self.files.len())
            .field("open_count", &self.open_count)
            .finish_non_exhaustive()
    }
}
