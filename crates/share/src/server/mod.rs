//! Answers the requests of a guest about one folder.
//!
//! A request names a file by number and at most one entry of a directory by name. The guest's
//! kernel checks permissions, against the owners and modes that it is shown; the host's kernel
//! checks that the user who runs the server may do what is asked.

mod acls;
mod attributes;
mod changes;
mod contents;
mod directories;
mod names;
mod owners;

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;

use micabox_fuse::message::{Body, LARGEST, MOST_DATA, Reply, Request};
use micabox_fuse::{Offer, flag, known, opcode};
use rustix::io::Errno;

use crate::handles::Handles;
use crate::nodes::{Nodes, ROOT, is_shortage};
use crate::shown::Validity;
use crate::versions::Table;
use changes::Changes;
use owners::Given;

/// What the server offers to the kernel (`FUSE_*` flags of `INIT`), of which the kernel uses what it
/// knows: reads and direct I/O side by side, data dropped from its cache when a file's time or size
/// has changed, lookups side by side in a directory, requests of 1 MiB, set-id bits cleared by the
/// server.
const OFFERED: u64 = flag::ASYNC_READ
    | flag::BIG_WRITES
    | flag::AUTO_INVAL_DATA
    | flag::ASYNC_DIO
    | flag::PARALLEL_DIROPS
    | flag::MAX_PAGES
    | flag::HANDLE_KILLPRIV_V2;

/// What the server offers beyond this where names stay valid: directories read with what a lookup of
/// each entry would answer.
const OFFERED_CACHED: u64 = flag::DO_READDIRPLUS | flag::READDIRPLUS_AUTO;

/// What it offers beyond this for an upper layer: access control lists, with umasks that it applies
/// where there are none.
const OFFERED_UPPER: u64 = flag::DONT_MASK | flag::POSIX_ACL;

/// What the server does not offer for an upper layer: to clear set-id bits. The overlay writes as its
/// own user and clears them itself.
const NOT_OF_AN_UPPER: u64 = flag::HANDLE_KILLPRIV_V2;

/// Requests that the kernel sends without waiting for them (readahead, for one).
const BACKGROUND: u16 = 32;

/// The server of one folder.
#[derive(Debug)]
pub(crate) struct Server {
    nodes: Nodes,
    handles: Handles,
    is_read_only: bool,
    /// Whether the folder is the writable layer of the guest's overlay, which alone changes it.
    is_upper: bool,
    /// Whether nothing is translated: owners, modes and attributes are the host's.
    is_as_it_is: bool,
    /// The name of the only file, if a file is shared and not a folder: the root's only entry.
    only: Option<CString>,
    /// How long the guest may keep what it was told, where changes are not reported.
    validity: Validity,
    /// What is reported, if the host changes the folder too.
    changes: Option<Changes>,
    offered: u64,
    /// The owner inside of files without a record: the user in the upper half, the group.
    owner: AtomicU64,
    given: Given,
}

/// How much a server may have of what its user has only so many of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    /// Files held open.
    pub(crate) places: usize,
    /// Watched files.
    pub(crate) watches: usize,
}

/// How a server treats its folder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) is_read_only: bool,
    /// Whether the guest may see the host's changes a second late.
    pub(crate) is_cached: bool,
    /// Whether the folder is an overlay's upper layer.
    pub(crate) is_upper: bool,
    /// Whether its files are shown as they are on the host.
    pub(crate) is_as_it_is: bool,
}

impl Server {
    /// Creates the server of a folder, or of a file that it calls `only`, for a guest with this table of
    /// versions. The process's working directory must be that of its own descriptors (`/proc/self/fd`),
    /// and its umask 0.
    pub(crate) fn new(
        root: OwnedFd,
        only: Option<CString>,
        manner: Manner,
        most: Most,
        table: Box<dyn Table>,
    ) -> Result<Self, Errno> {
        let (validity, offered) = match manner {
            Manner { is_upper: true, .. } => {
                let offered = OFFERED | OFFERED_CACHED | OFFERED_UPPER;
                (Validity::EXCLUSIVE, offered & !NOT_OF_AN_UPPER)
            }
            Manner {
                is_cached: true, ..
            } => (Validity::CACHED, OFFERED | OFFERED_CACHED),
            _ => (Validity::CONSISTENT, OFFERED),
        };
        let is_told =
            !(manner.is_upper || manner.is_cached || manner.is_as_it_is || only.is_some());
        Ok(Self {
            nodes: Nodes::new(root, most.places)?,
            changes: is_told.then(|| Changes::new(table, most.watches)).flatten(),
            handles: Handles::default(),
            is_read_only: manner.is_read_only,
            is_upper: manner.is_upper,
            is_as_it_is: manner.is_as_it_is,
            only,
            validity,
            offered,
            owner: AtomicU64::new(0),
            given: Given::default(),
        })
    }

    /// Answers a request of at most [`LARGEST`] bytes. None if it has no answer.
    pub(crate) fn answer(&self, request: &[u8]) -> Option<Vec<u8>> {
        let version = self.changes.as_ref().map_or(0, Changes::version);
        let mut request = Request::read(request)?;
        request.version = version;
        let mut reply = Reply::new();
        let done = match request.opcode {
            opcode::INTERRUPT => return None,
            code if opcode::forgets(code) => {
                // It has no reply, so no error either.
                let _ = request.forgotten(|node, lookups| self.forget_file(node, lookups));
                return None;
            }
            // What failed for want of a descriptor has left nothing, and is tried once more.
            _ => self.with_room(|| {
                reply = Reply::new();
                self.serve(&request, &mut reply)
            }),
        };
        Some(reply.finish(request.unique, done.err()))
    }

    fn serve(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        // One attribute is not the folder's: who owns it inside.
        let changes = opcode::changes(request.opcode) && request.opcode != opcode::SETXATTR;
        if self.is_read_only && changes {
            return Err(Errno::ROFS);
        }
        if self.only.is_some() && request.node == ROOT {
            return self.serve_only_entry(request, reply);
        }
        let changes = self.changes.as_ref();
        let _held = changes.and_then(|changes| changes.hold_names(request.opcode));
        match request.opcode {
            opcode::INIT => self.begin(request, reply),
            opcode::DESTROY => self.end(),
            opcode::LOOKUP => self.look_up(request, reply),
            opcode::GETATTR => self.attributes(request, reply),
            opcode::SETATTR => self.set_attributes(request, reply),
            opcode::READLINK => self.read_link(request, reply),
            opcode::SYMLINK => self.make_link(request, reply),
            opcode::MKNOD => self.make_node(request, reply),
            opcode::MKDIR => self.make_directory(request, reply),
            opcode::UNLINK => self.remove(request, false),
            opcode::RMDIR => self.remove(request, true),
            opcode::RENAME => self.rename(request, false),
            opcode::RENAME2 => self.rename(request, true),
            opcode::LINK => self.add_name(request, reply),
            opcode::OPEN => self.open(request, reply),
            opcode::OPENDIR => self.open_directory(request, reply),
            opcode::READ => self.read(request, reply),
            opcode::WRITE => self.write(request, reply),
            opcode::STATFS => self.room(request, reply),
            opcode::RELEASE | opcode::RELEASEDIR => self.close(request),
            opcode::FSYNC | opcode::FSYNCDIR => self.flush(request),
            opcode::SYNCFS => self.flush_all(request),
            opcode::SETXATTR => self.set_extended(request),
            opcode::GETXATTR => self.extended(request, reply),
            opcode::LISTXATTR => self.list_extended(request, reply),
            opcode::REMOVEXATTR => self.remove_extended(request),
            opcode::CREATE => self.create(request, reply),
            opcode::TMPFILE => self.create_unnamed(request, reply),
            opcode::READDIR => self.entries(request, reply, false),
            opcode::READDIRPLUS => self.entries(request, reply, true),
            opcode::FALLOCATE => self.allocate(request),
            opcode::LSEEK => self.seek(request, reply),
            opcode::COPY_FILE_RANGE => self.copy(request, reply),
            // Locks are the guest's own, and permissions are checked by its kernel.
            _ => Err(Errno::NOSYS),
        }
    }

    /// Begins a conversation: forgets one before.
    fn begin(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let knows_versions = known(request.body) & flag::VERSIONS != 0;
        let told = self.changes.as_ref().filter(|_| knows_versions);
        let flags = match told {
            Some(_) => self.offered | OFFERED_CACHED | flag::VERSIONS,
            None => self.offered,
        };
        let background = BACKGROUND;
        let (answer, _) = Offer { flags, background }.answer(request.body)?;
        self.end()?;
        if let Some(changes) = told {
            changes.begin(table(request.body)?);
            self.watch_root()?;
        }
        *reply = answer;
        Ok(())
    }

    fn end(&self) -> Result<(), Errno> {
        if let Some(changes) = &self.changes {
            changes.end();
        }
        self.handles.clear();
        self.nodes.clear()
    }

    fn forget_file(&self, node: u64, lookups: u64) {
        if self.nodes.forget(node, lookups)
            && let Some(changes) = &self.changes
        {
            changes.forget(node);
        }
    }

    /// Returns whether changes of the folder are to be followed ([`Server::follow`]).
    pub(crate) fn has_changes(&self) -> bool {
        self.changes.is_some()
    }

    /// Does something that opens files, and once more with fewer places held open if there are too many
    /// descriptors.
    fn with_room<T>(&self, mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        match open() {
            Err(error) if is_shortage(error) => {
                self.nodes.make_room();
                open()
            }
            result => result,
        }
    }
}

/// Returns where the guest has its table of versions, which is behind all that `INIT` has in mainline.
fn table(mut init: Body<'_>) -> Result<u64, Errno> {
    init.bytes(20)?;
    init.u64()
}

/// Returns the number of bytes to read: what is asked for, as far as a reply has room.
fn bounded(size: u32) -> u32 {
    size.min(MOST_DATA)
}

const _: () = assert!(LARGEST > MOST_DATA as usize);

/// Reads two names.
fn two_names<'a>(body: &mut Body<'a>) -> Result<(&'a CStr, &'a CStr), Errno> {
    Ok((body.name()?, body.name()?))
}
