//! What a sandbox sees: changes over an image.
//!
//! A file's number is twice that of the layer that has it, and one more for the upper layer. Of a
//! directory in the upper layer, what is below it depends on how it was reached, so it is kept from then
//! on: the kernel asks for nothing that it has not looked up.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use micabox_file::{FileKind, Segment};
use micabox_ground::lock;
use micabox_memfs::{Errno, Lower, Stat};
use micabox_overlay::lower::{self, Node};
use micabox_overlay::upper::Upper;
use micabox_overlay::view::{Directory, Entry, Slot, View};

use super::alone::read;
use super::{io, without_marks};

/// Names with the numbers of their files.
pub(crate) type Names = Vec<(Box<[u8]>, u64)>;

/// An upper layer over a lower one: what a sandbox sees.
pub struct Merged {
    below: Arc<lower::Lower>,
    layers: Mutex<Layers>,
    root: u64,
}

struct Layers {
    view: View<Box<dyn Upper + Send>>,
    /// Directories of the upper layer that were reached, by number.
    directories: HashMap<u64, Directory>,
}

impl Merged {
    pub(super) fn new(
        upper: Box<dyn Upper + Send>,
        below: Arc<lower::Lower>,
    ) -> Result<Self, Errno> {
        let mut layers = Layers {
            view: View::new(upper, Arc::clone(&below)),
            directories: HashMap::new(),
        };
        let root = layers.view.root().map_err(io)?;
        let root = layers.reached(root);
        Ok(Self {
            below,
            layers: Mutex::new(layers),
            root,
        })
    }

    /// Returns the file of the layer below that a file is, or that a directory is merged with; none for all
    /// else that the upper layer has.
    pub(crate) fn below(&self, number: u64) -> Option<u64> {
        if !Self::is_upper(number) {
            return Some(number);
        }
        let layers = self.layers();
        let directory = layers.directories.get(&number)?;
        let below = directory.seen_below().map(Node::number);
        below.map(|number| number * 2)
    }

    /// Returns whether a file is in the upper layer.
    pub(crate) fn is_upper(number: u64) -> bool {
        number & 1 == 1
    }

    /// Returns what the layer below has in one of its directories.
    pub(crate) fn list_below(&self, directory: u64) -> Result<Names, Errno> {
        let directory = self.below.node(directory / 2).map_err(io)?;
        let entries = self.below.entries(&directory).map_err(io)?.into_iter();
        Ok(entries
            .map(|entry| (entry.name, entry.number * 2))
            .collect())
    }

    fn layers(&self) -> MutexGuard<'_, Layers> {
        lock(&self.layers)
    }

    /// Returns the file with a number.
    fn entry(&self, number: u64) -> Result<Entry, Errno> {
        if number & 1 == 0 {
            return self.below.node(number / 2).map(Entry::Below).map_err(io);
        }
        let ino = u32::try_from(number / 2).map_err(io)?;
        let mut layers = self.layers();
        let view = &mut layers.view;
        view.upper_entry(ino).map_err(io)
    }
}

impl Layers {
    /// Returns the number of a directory, and keeps what it is of.
    fn reached(&mut self, directory: Directory) -> u64 {
        let number = match directory.identity() {
            (Some(ino), _) => u64::from(ino) * 2 + 1,
            (None, below) => return below.unwrap_or_default() * 2,
        };
        // Only on a damaged disk is it another one than before.
        self.directories.entry(number).or_insert(directory);
        number
    }

    /// Returns the number and kind of what is visible at a name.
    fn seen(&mut self, slot: &Slot) -> Option<(u64, FileKind)> {
        if let Some(directory) = slot.directory() {
            return Some((self.reached(directory), FileKind::Directory));
        }
        let entry = slot.seen()?;
        let number = match &entry {
            Entry::Upper(stat) => u64::from(stat.ino) * 2 + 1,
            Entry::Below(node) => node.number() * 2,
        };
        // As in `micabox_overlay::lower`.
        Some((number, entry.kind().unwrap_or(FileKind::Fifo)))
    }

    fn directory(&self, number: u64, below: &lower::Lower) -> Result<Directory, Errno> {
        if number & 1 == 0 {
            return below.node(number / 2).map(Directory::below).map_err(io);
        }
        self.directories.get(&number).cloned().ok_or(Errno::STALE)
    }
}

impl Lower for Merged {
    fn root(&self) -> u64 {
        self.root
    }

    fn stat(&self, number: u64) -> Result<Stat, Errno> {
        let stat = match self.entry(number)? {
            Entry::Below(node) => node.stat,
            Entry::Upper(found) => found.into(),
        };
        Ok(Stat { number, ..stat })
    }

    fn list(&self, directory: u64) -> Result<Vec<(Box<[u8]>, u64, FileKind)>, Errno> {
        let mut layers = self.layers();
        let directory = layers.directory(directory, &self.below)?;
        let slots = layers.view.list(&directory).map_err(io)?.into_iter();
        let entries = slots.filter_map(|(name, slot)| {
            let (number, kind) = layers.seen(&slot)?;
            Some((name, number, kind))
        });
        Ok(entries.collect())
    }

    fn read(&self, file: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let entry = match self.entry(file)? {
            // Side by side with all else.
            Entry::Below(node) => return read(&self.below, &node, offset, buffer),
            entry @ Entry::Upper(_) => entry,
        };
        let view = &mut self.layers().view;
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match view.read(&entry, offset + done as u64, rest).map_err(io)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn segments(&self, file: u64) -> Result<Vec<Segment>, Errno> {
        let entry = self.entry(file)?;
        self.layers().view.segments(&entry).map_err(io)
    }

    fn target(&self, link: u64) -> Result<Vec<u8>, Errno> {
        let entry = self.entry(link)?;
        self.layers().view.read_link(&entry).map_err(io)
    }

    /// Returns the attributes that a sandbox sees: without overlayfs's own.
    fn xattrs(&self, number: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Errno> {
        let entry = self.entry(number)?;
        let xattrs = self.layers().view.xattrs(&entry).map_err(io)?;
        Ok(without_marks(xattrs))
    }
}

impl fmt::Debug for Merged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merged").finish_non_exhaustive()
    }
}
