//! What the guest may keep until it changes, and what has changed.
//!
//! The guest is told of names and attributes with the version of when it asked. The kernel of the
//! host reports each change in the directories that the guest knows. What is reported of a name is
//! compared with what the guest was told: its own changes, which are reported as well, outdate no name.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use micabox_fuse::message::{Request, Until};
use micabox_fuse::opcode;
use micabox_ground::lock;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{Event, ReadFlags, Reader};
use rustix::fs::{AtFlags, FileType, Stat, fstat, statat};
use rustix::io::Errno;

use super::Server;
use crate::nodes::{Found, ROOT};
use crate::shown::Valid;
use crate::versions::{Slot, Table, Versions};
use crate::watches::{Watched, Watches};

/// Bytes of events that are read at a time.
const EVENTS: usize = 64 << 10;

/// Time between two looks at events: a guest that changes many files is itself the cause of most.
const PAUSE: Duration = Duration::from_millis(1);

/// An entry came or went.
const NAMES: ReadFlags = ReadFlags::CREATE
    .union(ReadFlags::DELETE)
    .union(ReadFlags::MOVED_FROM)
    .union(ReadFlags::MOVED_TO);

/// What the guest may keep until it changes.
#[derive(Debug)]
pub(super) struct Changes {
    versions: Versions,
    watches: Watches,
    /// Held by requests that tell of names or change them; exclusively, while what was told is
    /// compared with what is true.
    names: RwLock<()>,
    /// Room for events, of which one thread at a time makes versions.
    events: Mutex<Vec<MaybeUninit<u8>>>,
}

/// What is to be outdated.
#[derive(Debug, Default)]
struct Outdated {
    slots: Vec<Slot>,
    all: bool,
}

impl Changes {
    /// Creates what a server needs to be told of changes, with `most` watches; None if its user has no
    /// more of these.
    pub(super) fn new(table: Box<dyn Table>, most: usize) -> Option<Self> {
        Some(Self {
            versions: Versions::new(table),
            watches: Watches::new(most).ok()?,
            names: RwLock::new(()),
            events: Mutex::new(vec![MaybeUninit::uninit(); EVENTS]),
        })
    }

    /// Begins with the guest's table at `address`.
    pub(super) fn begin(&self, address: u64) {
        self.versions.begin(Some(address));
    }

    /// Ends: nothing is written to the guest's table any more.
    pub(super) fn end(&self) {
        self.versions.begin(None);
        self.watches.clear();
    }

    /// Returns the version of what is told from now on.
    pub(super) fn version(&self) -> u64 {
        self.versions.latest()
    }

    /// Notes that the guest has forgotten a file.
    pub(super) fn forget(&self, node: u64) {
        self.watches.forget(node);
    }

    /// Keeps what the guest was told from being compared meanwhile, for a request that changes it.
    pub(super) fn hold_names(&self, opcode: u32) -> Option<RwLockReadGuard<'_, ()>> {
        concerns_names(opcode).then(|| lock::read(&self.names))
    }

    fn comparing(&self) -> RwLockWriteGuard<'_, ()> {
        lock::write(&self.names)
    }
}

impl Server {
    /// Returns what to tell of a file that was just found, and for how long. What needs a watch of its own
    /// has it from then on.
    pub(super) fn valid_stat(
        &self,
        request: &Request<'_>,
        found: &Found,
    ) -> Result<(Stat, Valid), Errno> {
        let mut stat = found.stat;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let mut valid = self.validity.of(kind);
        let Some(changes) = self.changes.as_ref().filter(|on| on.versions.is_on()) else {
            return Ok((stat, valid));
        };
        let has_events = changes.watches.has(request.node);
        if has_events {
            valid.name = Until::Version(request.version);
        }
        let attributes_have = if has_own_watch(&stat) {
            let watched = changes
                .watches
                .add(found.node, &found.file, stat.st_dev, kind);
            if watched == Watched::New {
                stat = fstat(&found.file)?;
            }
            watched != Watched::Not
        } else {
            has_events
        };
        if attributes_have {
            valid.attributes = Until::Version(request.version);
        }
        Ok((stat, valid))
    }

    /// Watches the folder itself, for a guest that begins.
    pub(super) fn watch_root(&self) -> Result<(), Errno> {
        if let Some(changes) = &self.changes {
            let file = self.nodes.get(ROOT)?;
            let device = fstat(&*file)?.st_dev;
            changes
                .watches
                .add(ROOT, &file, device, FileType::Directory);
        }
        Ok(())
    }

    /// Returns how long the guest may keep that a directory has no such entry; None if not at all.
    pub(super) fn valid_absence(&self, request: &Request<'_>) -> Option<Valid> {
        let until = Until::Version(request.version);
        self.is_watched(request.node).then_some(Valid {
            name: until,
            attributes: until,
        })
    }

    /// Returns how long the guest may keep attributes of a file that it knows.
    pub(super) fn valid_attributes(&self, request: &Request<'_>, stat: &Stat) -> Until {
        let watched = if has_own_watch(stat) {
            Some(request.node)
        } else {
            self.nodes.place(request.node)
        };
        if watched.is_some_and(|node| self.is_watched(node)) {
            Until::Version(request.version)
        } else {
            let kind = FileType::from_raw_mode(stat.st_mode);
            self.validity.of(kind).attributes
        }
    }

    /// Returns whether the guest opens regular files without a request, and asks for attributes if what
    /// it knows is outdated.
    pub(super) fn opens_by_version(&self) -> bool {
        self.changes.as_ref().is_some_and(|on| on.versions.is_on())
    }

    /// Returns whether changes in a directory, or of a file that has a watch of its own, outdate what
    /// the guest was told.
    pub(super) fn is_watched(&self, node: u64) -> bool {
        let on = self.changes.as_ref().filter(|on| on.versions.is_on());
        on.is_some_and(|on| on.watches.has(node))
    }

    /// Outdates what the guest was told of an entry.
    pub(super) fn outdate_name(&self, directory: u64, name: &CStr) {
        self.nodes.forget_entry(directory, name);
        if let Some(changes) = &self.changes {
            changes
                .versions
                .outdate(Some(&[Slot::name(directory, name)]));
        }
    }

    /// Outdates what has changed, as long as the host tells.
    pub(crate) fn follow(&self) {
        let Some(changes) = &self.changes else {
            return;
        };
        loop {
            let events = PollFd::new(changes.watches.events(), PollFlags::IN);
            let result = match poll(&mut [events], None) {
                Ok(_) => self.catch_up(),
                Err(error) => Err(error),
            };
            match result {
                Ok(()) => std::thread::sleep(PAUSE),
                Err(Errno::INTR) => {}
                Err(error) => {
                    eprintln!("reading what has changed in a shared folder: {error}");
                    changes.versions.outdate(None);
                    changes.versions.begin(None);
                    return;
                }
            }
        }
    }

    /// Outdates all that has changed before this call.
    pub(super) fn catch_up(&self) -> Result<(), Errno> {
        let Some(changes) = &self.changes else {
            return Ok(());
        };
        let mut space = lock(&changes.events);
        let mut events = Reader::new(changes.watches.events(), space.as_mut_slice());
        let mut outdated = Outdated::default();
        loop {
            match events.next() {
                Ok(event) => self.note(changes, &event, &mut outdated),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            }
            if events.is_buffer_empty() {
                outdated.flush(&changes.versions);
            }
        }
    }

    fn note(&self, changes: &Changes, event: &Event<'_>, outdated: &mut Outdated) {
        let what = event.events();
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            // Anything may have changed.
            let _comparing = changes.comparing();
            self.nodes.forget_entries();
            outdated.all = true;
            return;
        }
        let Some(node) = changes.watches.file(event.wd()) else {
            return;
        };
        if what.contains(ReadFlags::IGNORED) {
            changes.watches.lost(event.wd());
        }
        match event.file_name() {
            None => outdated.file(node),
            Some(name) if what.intersects(NAMES) => {
                outdated.slots.push(Slot::contents(node));
                let _comparing = changes.comparing();
                self.compare(node, name, what.contains(ReadFlags::CREATE), outdated);
            }
            Some(name) => {
                let file = self.entry(node, name).ok().flatten();
                let Some(file) = file.and_then(|stat| self.nodes.number(&stat)) else {
                    return;
                };
                if what.contains(ReadFlags::ATTRIB) {
                    outdated.file(file);
                } else {
                    outdated.slots.push(Slot::contents(file));
                }
            }
        }
    }

    /// Outdates an entry unless it is as the guest was told, and what changes of a file with its names: but
    /// with a new name that it was told of, the guest was told that too.
    fn compare(&self, directory: u64, name: &CStr, is_new: bool, outdated: &mut Outdated) {
        let told = self.nodes.entry(directory, name);
        let found = self.entry(directory, name);
        let there = found.map(|stat| stat.map(|stat| self.nodes.number(&stat)));
        let is_as_told = match there {
            Ok(None) => told.is_none(),
            Ok(Some(Some(file))) => told == Some(file),
            Ok(Some(None)) | Err(_) => false,
        };
        if !is_as_told {
            self.nodes.forget_entry(directory, name);
            outdated.slots.push(Slot::name(directory, name));
        } else if is_new {
            return;
        }
        let there = there.ok().flatten().flatten();
        for file in [told, there].into_iter().flatten() {
            outdated.slots.push(Slot::contents(file));
        }
    }

    /// Returns what a directory has by a name; None if there is nothing.
    fn entry(&self, directory: u64, name: &CStr) -> Result<Option<Stat>, Errno> {
        let directory = self.nodes.get(directory)?;
        match statat(&*directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Outdated {
    fn file(&mut self, node: u64) {
        self.slots
            .extend([Slot::attributes(node), Slot::contents(node)]);
    }

    fn flush(&mut self, versions: &Versions) {
        self.slots.sort_unstable();
        self.slots.dedup();
        if self.all {
            versions.outdate(None);
        } else if !self.slots.is_empty() {
            versions.outdate(Some(&self.slots));
        }
        self.slots.clear();
        self.all = false;
    }
}

/// Returns whether a file needs a watch of its own: a directory, and what may be changed through a name
/// in a directory that the guest does not know.
fn has_own_watch(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory || stat.st_nlink > 1
}

/// Returns whether a request tells of names, or changes them.
fn concerns_names(code: u32) -> bool {
    opcode::changes_names(code) || matches!(code, opcode::LOOKUP | opcode::READDIRPLUS)
}
