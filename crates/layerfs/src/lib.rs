#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use micabox_erofs::ReadAt;
use micabox_fuse::message::{Attributes, MOST_DATA, Reply, Request, Until};
use micabox_fuse::{Answer, Offer, Server, flag, opcode};
use rustix::io::Errno;

/// The root directory's number; the first file's is the next one.
const ROOT: u64 = 1;

const DIRECTORY: u32 = 0o040_555;
const FILE: u32 = 0o100_444;

/// The kernel may keep what it has cached when a file is opened again (`FOPEN_KEEP_CACHE`).
const KEEP_CACHE: u32 = 1 << 1;

/// Requests that the kernel sends without waiting for them: pages that it reads ahead. Fewer than the threads of who
/// serves what is far away, so that others find one.
const BACKGROUND: u16 = 16;

/// How long the kernel may cache names, lengths and permissions, which never change.
const ALWAYS: Until = Until::Time(Duration::from_secs(1 << 31));

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

impl<S: ReadAt> Files<S> {
    /// Makes files of sources, whose lengths stay as they are. `unused` is called each time that the last open file is
    /// closed; `failed` with the number of a file, from 0, and the error of each read that its source refuses.
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
        reply.u32(KEEP_CACHE);
        reply.u32(0);
        Ok(reply)
    }

    fn release(&self) -> Reply {
        if self.open_count.fetch_sub(1, Ordering::SeqCst) == 1 {
            (self.unused)();
        }
        Reply::new()
    }

    /// Answers a read. Of one that fails the reason is told first: who sees the error finds it.
    fn read(&self, request: &Request<'_>, answer: Answer<'_>) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let mut problem = None;
        let mut read = || -> Result<Reply, Errno> {
            let (number, file) = self.file(request.node)?;
            let mut body = request.body;
            let (_handle, offset, size) = (body.u64()?, body.u64()?, body.u32()?);
            let size = u64::from(size.min(MOST_DATA)).min(file.size.saturating_sub(offset)) as u32;
            let mut reply = Reply::new();
            reply.fill(size, |buffer| {
                let read = file.source.read_exact_at(buffer, offset);
                read.map(|()| buffer.len()).map_err(|error| {
                    problem = Some((number, error));
                    Errno::IO
                })
            })?;
            Ok(reply)
        };
        let reply = read();
        if let Some((number, error)) = problem {
            (self.failed)(number, &error);
        }
        answer.reply(reply);
    }
}

impl<S: ReadAt + Sync> Server for Files<S> {
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
        if request.opcode == opcode::READ {
            return self.read(request, answer);
        }
        answer.reply(match request.opcode {
            opcode::LOOKUP => self.look_up(request),
            opcode::GETATTR => self.attributes(request.node).map(|attributes| {
                let mut reply = Reply::new();
                reply.only_attributes(&attributes, ALWAYS);
                reply
            }),
            opcode::OPEN => self.open(request),
            opcode::RELEASE => Ok(self.release()),
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
