//! Answers the kernel's requests with a filesystem in memory.
//!
//! The kernel checks permissions, follows links, and holds locks: it is the only one that has the
//! filesystem, so its own tables of locks are right. For the same reason names and attributes that it
//! was told stay valid, and also that a name is *not* there.

mod attributes;
mod data;
mod directories;
mod names;
mod statx;
mod xattrs;

use std::os::fd::OwnedFd;
use std::sync::{RwLock, RwLockWriteGuard};
use std::time::Duration;

use micabox_fuse::message::{Attributes, Body, Reply, Request, Until};
use micabox_fuse::{Answer, Channel, Offer, Server, flag, opcode};
use micabox_ground::lock;
use micabox_memfs::{Errno, Filesystem, Stat, Timestamp};

use crate::Error;

/// How long names and attributes stay valid.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
const VALID: Until = Until::Time(FOREVER);

/// Requests that the kernel sends without waiting for them.
const BACKGROUND: u16 = 64;

/// Bytes by which contents become fewer before free pages of the heap go back to the system. Large
/// chunks go back at once.
const KEPT: u64 = 8 << 20;

/// What is offered with every cache: reads and direct I/O side by side, umasks and access control lists
/// applied here, directories read with what a lookup of each entry would answer, lookups side by side
/// in a directory, targets of links kept, set-id bits cleared here,
/// and mounts of it elsewhere whose owners are mapped: a request to make something then has the owner on
/// this filesystem, and no other request has one.
const OFFERED: u64 = flag::ASYNC_READ
    | flag::ASYNC_DIO
    | flag::DONT_MASK
    | flag::DO_READDIRPLUS
    | flag::READDIRPLUS_AUTO
    | flag::PARALLEL_DIROPS
    | flag::POSIX_ACL
    | flag::CACHE_SYMLINKS
    | flag::HANDLE_KILLPRIV_V2
    | flag::SETXATTR_EXT
    | flag::ALLOW_IDMAP
    | flag::NO_OPENDIR_SUPPORT;

/// What the kernel caches of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Nothing: each read and write is a request, and is complete when it returns.
    None,
    /// What is read and written, until the file is opened the next time.
    Auto,
    /// What is read and written, until the kernel needs the memory.
    Always,
}

impl Cache {
    fn offered(self) -> u64 {
        match self {
            Self::None => flag::DIRECT_IO_ALLOW_MMAP,
            Self::Auto => flag::WRITEBACK_CACHE,
            Self::Always => flag::WRITEBACK_CACHE | flag::NO_OPEN_SUPPORT,
        }
    }

    /// Returns the flags of an open file (`FOPEN_*`).
    fn open_flags(self) -> u32 {
        const DIRECT_IO: u32 = 1 << 0;
        const KEEP_CACHE: u32 = 1 << 1;
        const NOFLUSH: u32 = 1 << 5;
        const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
        PARALLEL_DIRECT_WRITES
            | match self {
                Self::None => DIRECT_IO | NOFLUSH,
                Self::Auto => 0,
                Self::Always => KEEP_CACHE,
            }
    }
}

/// The server of one filesystem.
#[derive(Debug)]
pub struct Tree<'a> {
    files: &'a Filesystem,
    cache: Cache,
    is_for_one_user: bool,
    is_read_only: bool,
    has_births: bool,
    has_queues: bool,
    /// Shared by requests that change something.
    changes: RwLock<()>,
}

/// While this exists, nothing in a tree is changed: requests to do so wait.
#[derive(Debug)]
pub struct Frozen<'a>(#[expect(dead_code, reason = "dropped")] RwLockWriteGuard<'a, ()>);

impl<'a> Tree<'a> {
    /// Makes the server of a filesystem.
    #[must_use]
    pub fn new(files: &'a Filesystem, cache: Cache) -> Self {
        Self {
            files,
            cache,
            is_for_one_user: false,
            is_read_only: false,
            has_births: true,
            has_queues: false,
            changes: RwLock::default(),
        }
    }

    /// The same for a filesystem whose user may do everything in it
    /// ([`Place::is_for_one_user`](crate::Place::is_for_one_user)): the kernel leaves access control lists
    /// alone, since those would have it check permissions.
    #[must_use]
    pub fn for_one_user(self, is_for_one_user: bool) -> Self {
        Self {
            is_for_one_user,
            ..self
        }
    }

    /// The same for a filesystem that is mounted read-only: the kernel never has anything to write.
    #[must_use]
    pub fn read_only(self, is_read_only: bool) -> Self {
        Self {
            is_read_only,
            ..self
        }
    }

    /// The same for a filesystem whose files may have no time of birth, as those of an EROFS image: statx(2)
    /// then has none, and needs no request.
    #[must_use]
    pub fn with_births(self, has_births: bool) -> Self {
        Self { has_births, ..self }
    }

    /// The same with requests over io_uring where the kernel offers that, for a process that may use it.
    #[must_use]
    pub fn with_queues(self) -> Self {
        Self {
            has_queues: true,
            ..self
        }
    }

    /// Answers the kernel's requests until the filesystem is unmounted, on a thread for each of its
    /// [channels](crate::Place::channels).
    ///
    /// # Errors
    /// [`Error::Serving`].
    pub fn serve(&self, channels: Vec<OwnedFd>) -> Result<(), Error> {
        let channels: Vec<Channel> = channels.into_iter().map(Channel::new).collect();
        micabox_fuse::serve(&channels, self).map_err(Error::Serving)
    }

    /// Waits for the changes that are being made, and keeps others from beginning.
    pub fn freeze(&self) -> Frozen<'_> {
        Frozen(lock::write(&self.changes))
    }

    /// Returns the filesystem.
    #[must_use]
    pub fn files(&self) -> &'a Filesystem {
        self.files
    }
}

impl Server for Tree<'_> {
    fn offer(&self) -> Offer {
        let mut flags = OFFERED | self.cache.offered();
        if self.is_for_one_user {
            // Neither can be had without the kernel's checks.
            flags &= !(flag::POSIX_ACL | flag::ALLOW_IDMAP);
        }
        if self.has_queues {
            flags |= flag::OVER_IO_URING;
        }
        Offer {
            flags,
            background: BACKGROUND,
        }
    }

    /// Where data and holes are, the kernel asks without a look at what it has cached (`fuse_lseek`): a program
    /// that copies only data would lose what was written last.
    fn needs_written(&self, request: &Request<'_>) -> bool {
        request.opcode == opcode::LSEEK && !self.is_read_only
    }

    fn serve(&self, request: &Request<'_>, answer: Option<Answer<'_>>) {
        let changing = opcode::changes(request.opcode).then(|| lock::read(&self.changes));
        match answer {
            // These have no reply, so no error either.
            None => _ = request.forgotten(|node, count| self.files.forget(node, count)),
            Some(answer) if request.opcode == opcode::READ => self.read(request, answer),
            Some(answer) => answer.reply(self.answer(request)),
        }
        drop(changing);
        // After the answer, for which nothing waits any more.
        let may_free = opcode::forgets(request.opcode)
            || matches!(request.opcode, opcode::SETATTR | opcode::WRITE);
        if may_free && self.files.has_shrunk(KEPT) {
            micabox_jail::give_back_free_memory();
        }
    }
}

impl Tree<'_> {
    fn answer(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        match request.opcode {
            opcode::DESTROY => Ok(Reply::new()),
            opcode::LOOKUP => self.look_up(request),
            opcode::GETATTR => self.attributes(request),
            opcode::SETATTR => self.set_attributes(request),
            opcode::STATX if self.has_births => self.extended_attributes(request),
            opcode::READLINK => self.read_link(request),
            opcode::SYMLINK => self.make_link(request),
            opcode::MKNOD => self.make_node(request),
            opcode::MKDIR => self.make_directory(request),
            opcode::UNLINK => self.unlink(request),
            opcode::RMDIR => self.remove_directory(request),
            opcode::RENAME => self.rename(request, false),
            opcode::RENAME2 => self.rename(request, true),
            opcode::LINK => self.link(request),
            opcode::CREATE => self.create(request),
            opcode::TMPFILE => self.create_unnamed(request),
            opcode::OPEN => self.open(),
            opcode::RELEASE => Ok(Reply::new()),
            opcode::WRITE => self.write(request),
            opcode::FALLOCATE => self.allocate(request),
            opcode::LSEEK => self.seek(request),
            opcode::COPY_FILE_RANGE => self.copy(request),
            opcode::STATFS => Ok(self.room()),
            opcode::SETXATTR => self.set_xattr(request),
            opcode::GETXATTR => self.xattr(request),
            opcode::LISTXATTR => self.list_xattrs(request),
            opcode::REMOVEXATTR => self.remove_xattr(request),
            opcode::READDIR => self.list(request, false),
            opcode::READDIRPLUS => self.list(request, true),
            // Opening a directory, flushing and syncing have nothing to do, and no request takes so
            // long that it could be interrupted: after `ENOSYS`, the kernel sends no more of these. All else is
            // not a filesystem's.
            _ => Err(Errno::NOSYS),
        }
    }

    /// Opens a file. There is nothing to open; with [`Cache::Always`], `ENOSYS` ends such requests.
    fn open(&self) -> Result<Reply, Errno> {
        if self.cache == Cache::Always {
            return Err(Errno::NOSYS);
        }
        let mut reply = Reply::new();
        self.opened(&mut reply);
        Ok(reply)
    }

    /// Adds an open file (`fuse_open_out`), which has no number of its own.
    fn opened(&self, reply: &mut Reply) {
        reply.u64(0);
        reply.u32(self.cache.open_flags());
        reply.u32(0);
    }

    /// Answers with a file that was looked up or made.
    fn entry(&self, stat: &Stat) -> Reply {
        let mut reply = Reply::new();
        self.add_entry(&mut reply, stat);
        reply
    }

    fn add_entry(&self, reply: &mut Reply, stat: &Stat) {
        reply.entry(stat.number, &attributes(stat), VALID, VALID);
    }
}

/// Returns attributes as FUSE has them.
fn attributes(stat: &Stat) -> Attributes {
    let time = |time: Timestamp| (time.seconds, time.nanos);
    Attributes {
        number: stat.number,
        size: stat.size,
        blocks: stat.blocks,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        mode: mode(stat),
        links: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        device: stat.device,
        block_size: 4096,
        is_unsettled: false,
    }
}

/// Returns the type and all permission bits.
fn mode(stat: &Stat) -> u32 {
    u32::from(stat.kind.mode() | stat.mode)
}

/// Reads two names.
fn two_names<'a>(body: &mut Body<'a>) -> Result<(&'a [u8], &'a [u8]), Errno> {
    Ok((body.name()?.to_bytes(), body.name()?.to_bytes()))
}
