//! The files that the guest knows, by number.
//!
//! Each is held open as a place (`O_PATH`), so that it stays the same file whatever happens to its
//! names. A process has fewer descriptors than a tree may have files: of those beyond a limit, the
//! longest held are closed, and found again by directory and name, if it is the same file.

use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use micabox_ground::lock;
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;

/// The number of the share's root (`FUSE_ROOT_ID`).
pub(crate) const ROOT: u64 = 1;

/// How a place is opened: never through a link.
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Identifies a file on the host.
type Key = (u64, u64);

#[derive(Debug)]
struct Node {
    key: Key,
    kind: FileType,
    file: Option<Arc<OwnedFd>>,
    /// Where it was last found.
    parent: u64,
    name: Arc<CStr>,
    /// Of a directory: what the guest was last told of its entries, as far as it was.
    entries: HashMap<Arc<CStr>, u64>,
    /// How many times the guest was told of it and did not forget.
    lookups: u64,
    /// Whether it has no name to be found by.
    is_pinned: bool,
    stamp: Option<Stamp>,
}

/// When a file changed last, and its size.
pub(crate) type Stamp = (i64, u64, i64, u64, i64);

/// A file that the guest was told of.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) node: u64,
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) stat: Stat,
}

/// All files that the guest knows.
#[derive(Debug)]
pub(crate) struct Nodes(Mutex<Table>);

#[derive(Debug)]
struct Table {
    root: Arc<OwnedFd>,
    nodes: HashMap<u64, Node>,
    known: HashMap<Key, u64>,
    /// Those with a descriptor, the longest held first. May have one twice, or one that is gone.
    held: VecDeque<u64>,
    next: u64,
    /// Most descriptors to hold.
    most: usize,
}

impl Nodes {
    /// Creates the table of a share whose root is `root`, which holds up to `most` descriptors.
    pub(crate) fn new(root: OwnedFd, most: usize) -> Result<Self, Errno> {
        let mut table = Table {
            root: Arc::new(root),
            nodes: HashMap::new(),
            known: HashMap::new(),
            held: VecDeque::new(),
            next: ROOT,
            most,
        };
        table.begin()?;
        Ok(Self(Mutex::new(table)))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.0)
    }

    /// Forgets everything but the root.
    pub(crate) fn clear(&self) -> Result<(), Errno> {
        self.lock().begin()
    }

    /// Returns a file that the guest knows.
    pub(crate) fn get(&self, node: u64) -> Result<Arc<OwnedFd>, Errno> {
        self.lock().get(node)
    }

    /// Returns a file's type.
    pub(crate) fn kind(&self, node: u64) -> Result<FileType, Errno> {
        let table = self.lock();
        Ok(table.nodes.get(&node).ok_or(Errno::STALE)?.kind)
    }

    /// Returns the directory in which a file was last found.
    pub(crate) fn parent(&self, node: u64) -> Result<u64, Errno> {
        let table = self.lock();
        Ok(table.nodes.get(&node).ok_or(Errno::STALE)?.parent)
    }

    /// Finds the entry `name` of a directory, and counts that the guest is told of it.
    pub(crate) fn look_up(&self, parent: u64, name: &CStr) -> Result<Found, Errno> {
        let directory = self.get(parent)?;
        let file = open(&directory, name)?;
        self.count_lookup(parent, name, file, false)
    }

    /// Counts that the guest is told of an open file.
    pub(crate) fn count_lookup(
        &self,
        parent: u64,
        name: &CStr,
        file: OwnedFd,
        is_pinned: bool,
    ) -> Result<Found, Errno> {
        let stat = fstat(&file)?;
        let mut table = self.lock();
        let (node, file) = table.count_lookup(parent, name, file, &stat, is_pinned);
        Ok(Found { node, file, stat })
    }

    /// Counts that the guest has forgotten a file `count` times. Returns whether it is forgotten.
    pub(crate) fn forget(&self, node: u64, count: u64) -> bool {
        let mut table = self.lock();
        let Some(known) = table.nodes.get_mut(&node).filter(|_| node != ROOT) else {
            return false;
        };
        known.lookups = known.lookups.saturating_sub(count);
        if known.lookups > 0 {
            return false;
        }
        table.displace(node);
        if let Some(gone) = table.nodes.remove(&node)
            && table.known.get(&gone.key) == Some(&node)
        {
            table.known.remove(&gone.key);
        }
        true
    }

    /// Returns the file that the guest was told to have this name.
    pub(crate) fn entry(&self, parent: u64, name: &CStr) -> Option<u64> {
        self.lock().entry(parent, name)
    }

    /// Returns the directory where the guest was told that a file is; None if the file is not there
    /// any more, as far as is known.
    pub(crate) fn place(&self, node: u64) -> Option<u64> {
        let table = self.lock();
        let known = table.nodes.get(&node)?;
        (table.entry(known.parent, &known.name) == Some(node)).then_some(known.parent)
    }

    /// Notes that the guest was told that there is no such entry, or knows nothing of it any more.
    pub(crate) fn forget_entry(&self, parent: u64, name: &CStr) {
        let mut table = self.lock();
        if let Some(directory) = table.nodes.get_mut(&parent) {
            directory.entries.remove(name);
        }
    }

    /// As [`Nodes::forget_entry`], of all entries.
    pub(crate) fn forget_entries(&self) {
        for node in self.lock().nodes.values_mut() {
            node.entries.clear();
        }
    }

    /// Returns the number by which the guest knows a file.
    pub(crate) fn number(&self, stat: &Stat) -> Option<u64> {
        let table = self.lock();
        let number = table.known.get(&key(stat)).copied()?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        (table.nodes.get(&number)?.kind == kind).then_some(number)
    }

    /// Notes that a directory's entry is about to be removed or replaced: the guest may have the
    /// file open, and it may have no other name.
    ///
    /// # Errors
    /// If there is no descriptor for it. Without the entry there is nothing to note.
    pub(crate) fn pin(&self, parent: u64, name: &CStr) -> Result<(), Errno> {
        let pin = || -> Result<(), Errno> {
            let file = open(&*self.get(parent)?, name)?;
            let key = key(&fstat(&file)?);
            let mut table = self.lock();
            if let Some(known) = table.known.get(&key).copied()
                && let Some(node) = table.nodes.get_mut(&known)
            {
                node.is_pinned = true;
                node.file.get_or_insert_with(|| Arc::new(file));
            }
            Ok(())
        };
        match pin() {
            Err(error) if is_shortage(error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Notes where an entry is now.
    ///
    /// # Errors
    /// If it is not there any more.
    pub(crate) fn moved(&self, parent: u64, name: &CStr) -> Result<(), Errno> {
        let file = open(&*self.get(parent)?, name)?;
        let key = key(&fstat(&file)?);
        let mut table = self.lock();
        if let Some(known) = table.known.get(&key).copied()
            && let Some(node) = table.nodes.get_mut(&known)
        {
            node.is_pinned = false;
            table.put(known, parent, name);
        }
        Ok(())
    }

    /// Replaces a file's stamp, and returns the one before.
    pub(crate) fn stamp(&self, node: u64, stamp: Option<Stamp>) -> Option<Stamp> {
        let mut table = self.lock();
        let known = table.nodes.get_mut(&node)?;
        std::mem::replace(&mut known.stamp, stamp)
    }

    /// Closes half of the places that are held open, for the sake of other files.
    pub(crate) fn make_room(&self) {
        let mut table = self.lock();
        let half = table.held.len() / 2;
        table.release(half);
    }
}

impl Table {
    fn begin(&mut self) -> Result<(), Errno> {
        self.nodes.clear();
        self.known.clear();
        self.held.clear();
        let stat = fstat(&*self.root)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let root = Node {
            // If a file is shared, the root is a directory that the host doesn't have.
            key: match kind {
                FileType::Directory => key(&stat),
                _ => (u64::MAX, u64::MAX),
            },
            kind,
            file: Some(Arc::clone(&self.root)),
            parent: ROOT,
            name: c"".into(),
            entries: HashMap::new(),
            lookups: 1,
            is_pinned: true,
            stamp: None,
        };
        self.known.insert(root.key, ROOT);
        self.nodes.insert(ROOT, root);
        Ok(())
    }

    fn count_lookup(
        &mut self,
        parent: u64,
        name: &CStr,
        file: OwnedFd,
        stat: &Stat,
        is_pinned: bool,
    ) -> (u64, Arc<OwnedFd>) {
        let key = key(stat);
        let kind = FileType::from_raw_mode(stat.st_mode);
        let known = self.known.get(&key).copied();
        if let Some(number) = known
            && let Some(node) = self.nodes.get_mut(&number)
            // Another file may have got the number of a removed one.
            && node.kind == kind
        {
            node.lookups = node.lookups.saturating_add(1);
            let held = node.file.clone();
            let file = held.clone().unwrap_or_else(|| Arc::new(file));
            node.file = Some(Arc::clone(&file));
            self.put(number, parent, name);
            if held.is_none() {
                self.hold(number);
            }
            return (number, file);
        }
        self.next = self.next.wrapping_add(1);
        let number = self.next;
        let file = Arc::new(file);
        let node = Node {
            key,
            kind,
            file: Some(Arc::clone(&file)),
            parent,
            name: name.into(),
            entries: HashMap::new(),
            lookups: 1,
            is_pinned,
            stamp: None,
        };
        self.known.insert(key, number);
        self.nodes.insert(number, node);
        self.put(number, parent, name);
        self.hold(number);
        (number, file)
    }

    /// Notes that the guest was told of a file at this place, and that it is at no other.
    fn put(&mut self, number: u64, parent: u64, name: &CStr) {
        if number == ROOT {
            return;
        }
        self.displace(number);
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        if *node.name != *name {
            node.name = name.into();
        }
        node.parent = parent;
        let name = Arc::clone(&node.name);
        if let Some(directory) = self.nodes.get_mut(&parent)
            // A file that was made without a name is nowhere.
            && !name.is_empty()
        {
            directory.entries.insert(name, number);
        }
    }

    /// Notes that a file is not where the guest was told.
    fn displace(&mut self, number: u64) {
        let Some(node) = self.nodes.get(&number) else {
            return;
        };
        let (parent, name) = (node.parent, Arc::clone(&node.name));
        if self.entry(parent, &name) == Some(number)
            && let Some(directory) = self.nodes.get_mut(&parent)
        {
            directory.entries.remove(&name);
        }
    }

    fn entry(&self, parent: u64, name: &CStr) -> Option<u64> {
        self.nodes.get(&parent)?.entries.get(name).copied()
    }

    /// Notes that a file's descriptor is held, and closes others if they are too many.
    fn hold(&mut self, number: u64) {
        self.held.push_back(number);
        if self.held.len() > self.most {
            self.release(self.most / 4);
        }
    }

    /// Closes about `count` descriptors, the longest held first.
    fn release(&mut self, count: usize) {
        for _ in 0..count {
            let Some(number) = self.held.pop_front() else {
                return;
            };
            match self.nodes.get_mut(&number) {
                Some(node) if node.is_pinned => self.held.push_back(number),
                Some(node) => node.file = None,
                None => {}
            }
        }
    }

    /// Returns a file, which is found again if its descriptor was closed.
    fn get(&mut self, number: u64) -> Result<Arc<OwnedFd>, Errno> {
        // From the file to the next directory above it that is open.
        let mut closed = Vec::new();
        let mut at = number;
        let mut file = loop {
            let node = self.nodes.get(&at).ok_or(Errno::STALE)?;
            if let Some(file) = &node.file {
                break Arc::clone(file);
            }
            // Names that changed may lead in a circle.
            if closed.len() > self.nodes.len() {
                return Err(Errno::STALE);
            }
            closed.push(at);
            at = node.parent;
        };
        while let Some(number) = closed.pop() {
            let node = self.nodes.get_mut(&number).ok_or(Errno::STALE)?;
            let found = open(&file, &node.name).map_err(|error| match error {
                // Of this server, and not of the file: it may be there.
                error if is_shortage(error) => error,
                _ => Errno::STALE,
            })?;
            if key(&fstat(&found)?) != node.key {
                return Err(Errno::STALE);
            }
            file = Arc::new(found);
            node.file = Some(Arc::clone(&file));
            self.held.push_back(number);
        }
        if self.held.len() > self.most {
            self.release(self.most / 4);
        }
        Ok(file)
    }
}

/// Opens an entry of a directory as a place.
fn open(directory: &impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    openat(directory, name, PLACE, Mode::empty())
}

/// Whether there are too many open files, in this process or on this machine, or too little memory for one.
pub(crate) fn is_shortage(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}

fn key(stat: &Stat) -> Key {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_whose_descriptor_was_closed_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        std::fs::create_dir_all(path.join("a/b")).unwrap();
        let root = std::fs::File::open(path).unwrap();
        let nodes = Nodes::new(root.into(), 8).unwrap();
        let a = nodes.look_up(ROOT, c"a").unwrap().node;
        let b = nodes.look_up(a, c"b").unwrap().node;
        for number in 0..100 {
            std::fs::write(path.join(format!("a/b/{number}")), "").unwrap();
        }
        let name = |number: u64| std::ffi::CString::new(number.to_string()).unwrap();
        let files: Vec<u64> = (0..100)
            .map(|number| nodes.look_up(b, &name(number)).unwrap().node)
            .collect();
        assert!(nodes.lock().held.len() <= 8);
        let first = files[0];
        assert_eq!(nodes.look_up(b, c"0").unwrap().node, first);
        // Renamed by the guest: known. Replaced by the host: another file.
        std::fs::rename(path.join("a/b/1"), path.join("c")).unwrap();
        nodes.moved(ROOT, c"c").unwrap();
        nodes.make_room();
        nodes.get(files[1]).unwrap();
        std::fs::write(path.join("new"), "").unwrap();
        std::fs::rename(path.join("new"), path.join("a/b/2")).unwrap();
        nodes.lock().release(100);
        assert_eq!(nodes.get(files[2]).unwrap_err(), Errno::STALE);
        // Removed, but open.
        nodes.pin(b, c"3").unwrap();
        std::fs::remove_file(path.join("a/b/3")).unwrap();
        nodes.lock().release(100);
        nodes.get(files[3]).unwrap();
        nodes.forget(first, 2);
        assert_eq!(nodes.get(first).unwrap_err(), Errno::STALE);
    }
}
