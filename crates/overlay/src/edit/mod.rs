//! Edits an upper layer, with the results that overlayfs would write, or a filesystem by itself.

mod attributes;
mod problem;

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use micabox_ext4::{
    BlockDevice, Errno, Ext4, FileKind, Ino, Options, Owner, Segment, SetAttributes, SetXattr,
    Stat, Timestamp,
};
use micabox_ground::piece;

use crate::lower::{Lower, Node};
use crate::path::{Way, parent_and_name};
use crate::view::{Directory, Slot, View, ViewError};
use crate::words::{self, OPAQUE, WHITEOUT_DEVICE, is_marker};

pub use attributes::Attributes;
pub use problem::Problem;

/// Bytes of a file that are copied at a time.
const PIECE: usize = 1 << 20;

/// Most directories whose paths are cached.
const KNOWN_MAX: usize = 4096;

type Result<T> = std::result::Result<T, Problem>;

/// What is edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An upper layer that no guest has mounted yet. Existing directories keep their mtime and are
    /// never replaced, and directories that are missing at the target of a symbolic link are made
    /// there.
    Layer,
    /// A filesystem by itself, with an unpacker's rules: empty directories are replaced, links and
    /// files are replaced by directories, and a directory that no member describes has the mtime
    /// 1970-01-01.
    Filesystem,
}

/// A directory that is being written to.
#[derive(Clone, Debug)]
pub struct Place {
    ino: Ino,
    seen: Directory,
}

impl Place {
    fn new(ino: Ino, below: Option<Node>) -> Self {
        let seen = Directory {
            upper: Some(ino),
            below,
            hidden: false,
        };
        Self { ino, seen }
    }
}

/// An upper layer or a filesystem that is being edited.
pub struct Edit<D> {
    view: View<Ext4<D>>,
    kind: Kind,
    root: Place,
    /// The mtimes that directories get at the end: those from before the edit, or those set by it.
    mtimes: BTreeMap<Ino, Timestamp>,
    /// Directories by path. A cache, since an archive's members often share a directory.
    known: HashMap<Vec<u8>, Place>,
}

impl<D: BlockDevice> Edit<D> {
    /// Opens the upper layer on `disk`, in the directory `/root` there, over `lower`. Makes the
    /// directory if it is missing.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn layer(disk: D, lower: Lower) -> Result<Self> {
        let mut upper = Ext4::open(disk, Options::default())?;
        let below = lower.root()?;
        let (ino, is_new) = match upper.lookup(micabox_ext4::ROOT, words::ROOT) {
            Ok(ino) => (ino, false),
            Err(error) if error.errno() == Errno::NotFound => {
                let owner = Owner::root(0o755);
                let ino = upper.mkdir(micabox_ext4::ROOT, words::ROOT, owner)?;
                (ino, true)
            }
            Err(error) => return Err(error.into()),
        };
        let root = Place::new(ino, Some(below.clone()));
        let mut edit = Self::new(View::new(upper, lower), Kind::Layer, root);
        if is_new {
            edit.copy_attributes(ino, &below)?;
        }
        Ok(edit)
    }

    /// Edits `filesystem` itself.
    pub fn filesystem(filesystem: Ext4<D>) -> Self {
        let root = Place::new(micabox_ext4::ROOT, None);
        Self::new(
            View::new(filesystem, Lower::Nothing),
            Kind::Filesystem,
            root,
        )
    }

    fn new(view: View<Ext4<D>>, kind: Kind, root: Place) -> Self {
        Self {
            view,
            kind,
            root,
            mtimes: BTreeMap::new(),
            known: HashMap::new(),
        }
    }

    /// Sets the directories' mtimes and writes everything to the disk.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn close(mut self) -> Result<()> {
        for (ino, mtime) in std::mem::take(&mut self.mtimes) {
            let times = self.times(Some(mtime));
            match self.view.upper.set_attributes(ino, &times) {
                // Removed meanwhile.
                Err(error) if error.errno() == Errno::Stale => {}
                result => result?,
            }
        }
        self.view.upper.close()?;
        Ok(())
    }

    /// Returns the directory at `path`. Copies it up from the lower layer or makes it if necessary.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn directory(&mut self, path: &[u8]) -> Result<Place> {
        if let Some(place) = self.known.get(path) {
            return Ok(place.clone());
        }
        let mut way = Way::new(self.root.clone(), path);
        while let Some(name) = way.next() {
            let place = way.place().clone();
            let slot = self.view.slot(&place.seen, &name)?;
            if let Some(directory) = slot.directory() {
                way.enter(self.bring_up(&place, &name, directory)?);
                continue;
            }
            match slot.seen() {
                None => way.enter(self.new_directory(&place, &name, &slot)?),
                Some(link) if link.kind() == Some(FileKind::Symlink) => {
                    way.follow(&self.view.read_link(&link)?)?;
                }
                Some(_) => return Err(ViewError::NotDirectory.into()),
            }
        }
        if self.known.len() == KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(path.to_vec(), way.place().clone());
        Ok(way.place().clone())
    }

    /// Makes a directory at `path`, or uses the existing one, and sets its attributes.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn set_directory(&mut self, path: &[u8], attributes: &Attributes) -> Result<()> {
        let place = match (self.kind, parent_and_name(path)) {
            (Kind::Filesystem, Some((parent, name))) => {
                let place = self.directory(parent)?;
                let slot = self.view.slot(&place.seen, name)?;
                match slot.directory() {
                    Some(directory) => self.bring_up(&place, name, directory)?,
                    None => {
                        self.give_way(&place, name, &slot)?;
                        self.new_directory(&place, name, &slot)?
                    }
                }
            }
            _ => self.directory(path)?,
        };
        self.set(place.ino, attributes, FileKind::Directory)?;
        if let Some(mtime) = attributes.mtime {
            self.mtimes.insert(place.ino, mtime);
        }
        Ok(())
    }

    /// Returns where a path leads ([`View::through_links`]).
    ///
    /// # Errors
    /// [`Problem`].
    pub fn through_links(&mut self, path: &[u8]) -> Result<Vec<u8>> {
        Ok(self.view.through_links(path)?)
    }

    /// Returns whether there is a directory at `path`; a symbolic link to one doesn't count.
    /// Missing parents of `path` are made.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn is_directory(&mut self, path: &[u8]) -> Result<bool> {
        let Some((parent, name)) = parent_and_name(path) else {
            return Ok(true);
        };
        let place = self.directory(parent)?;
        Ok(self.view.slot(&place.seen, name)?.directory().is_some())
    }

    /// Makes a file of at least `size` bytes, in place of what is at `path`. `contents` is the
    /// contents of `parts`, one after the other; the rest are holes. Returns the number of bytes
    /// read from `contents`.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn file(
        &mut self,
        path: &[u8],
        attributes: &Attributes,
        size: u64,
        parts: &[Segment],
        contents: &mut dyn Read,
    ) -> Result<u64> {
        let (place, name) = self.clear(path)?;
        let upper = &mut self.view.upper;
        let ino = upper.create(place.ino, name, attributes.owner)?;
        let longest = parts.iter().map(|part| part.length).max().unwrap_or(0);
        let mut buffer = vec![0; usize::try_from(longest).unwrap_or(PIECE).min(PIECE)];
        let (mut bytes, mut end) = (0, 0);
        for &Segment { offset, length } in parts {
            let count = write(upper, ino, offset, &mut contents.take(length), &mut buffer)?;
            bytes += count;
            end = offset.saturating_add(count);
        }
        if end < size {
            upper.truncate(ino, size)?;
        }
        self.set(ino, attributes, FileKind::File)?;
        Ok(bytes)
    }

    /// Makes a symbolic link, in place of what is at `path`.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn symlink(&mut self, path: &[u8], target: &[u8], attributes: &Attributes) -> Result<()> {
        let (place, name) = self.clear(path)?;
        let owner = attributes.owner;
        let ino = self.view.upper.symlink(place.ino, name, target, owner)?;
        self.set(ino, attributes, FileKind::Symlink)
    }

    /// Makes a device or FIFO, in place of what is at `path`.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn node(
        &mut self,
        path: &[u8],
        kind: FileKind,
        device: (u32, u32),
        attributes: &Attributes,
    ) -> Result<()> {
        let is_whiteout = kind == FileKind::CharDevice && device == WHITEOUT_DEVICE;
        if self.kind == Kind::Layer && is_whiteout {
            return Err("a device 0, 0 would mean that something is gone".into());
        }
        let (place, name) = self.clear(path)?;
        let owner = attributes.owner;
        let ino = self
            .view
            .upper
            .mknod(place.ino, name, kind, device, owner)?;
        self.set(ino, attributes, kind)
    }

    /// Makes `path` a hard link to the file at `target`, which must be in the upper layer.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn link(&mut self, path: &[u8], target: &[u8]) -> Result<()> {
        let (parent, name) = parent_and_name(target).ok_or("a link to the root")?;
        let place = self.directory(parent)?;
        let slot = self.view.slot(&place.seen, name)?;
        let missing = "a hard link to a file that is not in the archive before it";
        let stat = slot.upper.filter(|stat| !words::is_whiteout(stat));
        let ino = stat.ok_or(missing)?.ino;
        let (parent, name) = parent_and_name(path).ok_or("there is a directory")?;
        let place = self.directory(parent)?;
        let slot = self.view.slot(&place.seen, name)?;
        // Two names of one file can't replace each other.
        if slot.upper.is_some_and(|stat| stat.ino == ino) {
            return Ok(());
        }
        let (place, name) = self.clear(path)?;
        Ok(self.view.upper.link(ino, place.ino, name)?)
    }

    /// Removes the file or directory at `path`, with everything below it.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn remove(&mut self, path: &[u8]) -> Result<()> {
        let (parent, name) = parent_and_name(path).ok_or("the root can't be removed")?;
        let place = self.directory(parent)?;
        let slot = self.view.slot(&place.seen, name)?;
        if slot.seen().is_none() {
            return Err("there is nothing of that name".into());
        }
        self.known.clear();
        self.keep_mtime(place.ino)?;
        if let Some(stat) = slot.upper {
            self.remove_upper(place.ino, name, &stat)?;
        }
        if slot.below.is_some() && !slot.hidden {
            let (kind, owner) = (FileKind::CharDevice, Owner::root(0));
            let upper = &mut self.view.upper;
            upper.mknod(place.ino, name, kind, WHITEOUT_DEVICE, owner)?;
        }
        Ok(())
    }

    fn remove_upper(&mut self, parent: Ino, name: &[u8], stat: &Stat) -> Result<()> {
        if stat.kind() != Some(FileKind::Directory) {
            return Ok(self.view.upper.unlink(parent, name)?);
        }
        // Parents before children; removed in reverse, so that each directory is empty by then.
        let mut order = vec![(parent, name.to_vec(), stat.ino)];
        let mut at = 0;
        while let Some((_, _, directory)) = order.get(at).cloned() {
            at += 1;
            for entry in self.view.upper.read_dir(directory)? {
                if self.view.upper.stat(entry.ino)?.kind() == Some(FileKind::Directory) {
                    order.push((directory, entry.name.into_vec(), entry.ino));
                } else {
                    self.view.upper.unlink(directory, &entry.name)?;
                }
            }
        }
        for (parent, name, ino) in order.into_iter().rev() {
            self.view.upper.rmdir(parent, &name)?;
            self.mtimes.remove(&ino);
        }
        Ok(())
    }

    /// Makes room at `path`. Returns the parent directory and the name there.
    fn clear<'a>(&mut self, path: &'a [u8]) -> Result<(Place, &'a [u8])> {
        let (parent, name) = parent_and_name(path).ok_or("there is a directory")?;
        let place = self.directory(parent)?;
        let slot = self.view.slot(&place.seen, name)?;
        if self.kind == Kind::Layer && slot.directory().is_some() {
            return Err("there is a directory".into());
        }
        self.keep_mtime(place.ino)?;
        self.give_way(&place, name, &slot)?;
        Ok((place, name))
    }

    /// Removes the upper layer's entry at a name; a directory must be empty.
    fn give_way(&mut self, place: &Place, name: &[u8], slot: &Slot) -> Result<()> {
        let Some(stat) = &slot.upper else {
            return Ok(());
        };
        match stat.kind() {
            Some(FileKind::Directory) => {
                self.view.upper.rmdir(place.ino, name)?;
                self.mtimes.remove(&stat.ino);
                self.known.clear();
            }
            kind => {
                self.view.upper.unlink(place.ino, name)?;
                if kind == Some(FileKind::Symlink) {
                    self.known.clear();
                }
            }
        }
        Ok(())
    }

    /// Returns the upper layer's directory at a name where a directory is visible; copies it up if
    /// necessary.
    fn bring_up(&mut self, place: &Place, name: &[u8], seen: Directory) -> Result<Place> {
        match (seen.upper, seen.below.clone()) {
            (Some(ino), _) => Ok(Place { ino, seen }),
            (None, Some(below)) => self.copy_up(place, name, below),
            (None, None) => Err(ViewError::Nothing.into()),
        }
    }

    /// Copies a directory, without its entries, from the lower layer to the upper one.
    fn copy_up(&mut self, place: &Place, name: &[u8], below: Node) -> Result<Place> {
        self.keep_mtime(place.ino)?;
        let ino = self.view.upper.mkdir(place.ino, name, Owner::root(0o755))?;
        self.copy_attributes(ino, &below)?;
        Ok(Place::new(ino, Some(below)))
    }

    fn copy_attributes(&mut self, ino: Ino, below: &Node) -> Result<()> {
        let xattrs = self.view.lower.xattrs(below)?.into_iter();
        let attributes = Attributes {
            owner: Owner {
                permissions: below.stat.mode,
                uid: below.stat.uid,
                gid: below.stat.gid,
            },
            mtime: Some(below.stat.mtime),
            // overlayfs's own attributes describe the layer they are in.
            xattrs: xattrs.filter(|(name, _)| !is_marker(name)).collect(),
        };
        self.set(ino, &attributes, FileKind::Directory)?;
        self.mtimes
            .extend(attributes.mtime.map(|mtime| (ino, mtime)));
        Ok(())
    }

    /// Makes a directory where none is visible; what a whiteout hid there stays hidden.
    fn new_directory(&mut self, place: &Place, name: &[u8], slot: &Slot) -> Result<Place> {
        self.keep_mtime(place.ino)?;
        // In a filesystem of its own a 0/0 device is a device.
        let is_whiteout = self.kind == Kind::Layer && slot.is_whiteout();
        if is_whiteout {
            self.give_way(place, name, slot)?;
        }
        let upper = &mut self.view.upper;
        let ino = upper.mkdir(place.ino, name, Owner::root(0o755))?;
        if is_whiteout {
            upper.set_xattr(ino, OPAQUE, words::YES, SetXattr::Any)?;
        }
        if self.kind == Kind::Filesystem {
            self.mtimes.insert(ino, Timestamp::default());
        }
        Ok(Place::new(ino, None))
    }

    fn set(&mut self, ino: Ino, attributes: &Attributes, kind: FileKind) -> Result<()> {
        for (name, value) in &attributes.xattrs {
            self.view.upper.set_xattr(ino, name, value, SetXattr::Any)?;
        }
        let Owner {
            permissions,
            uid,
            gid,
        } = attributes.owner;
        // Last: other calls change times, and a change of owner clears set-uid bits.
        let set = SetAttributes {
            // A symbolic link's permissions have no effect; they stay 0777.
            permissions: (kind != FileKind::Symlink).then_some(permissions),
            uid: Some(uid),
            gid: Some(gid),
            ..self.times(attributes.mtime)
        };
        Ok(self.view.upper.set_attributes(ino, &set)?)
    }

    fn times(&self, mtime: Option<Timestamp>) -> SetAttributes {
        SetAttributes {
            atime: mtime.filter(|_| self.kind == Kind::Filesystem),
            mtime,
            ..SetAttributes::default()
        }
    }

    /// Makes the directory keep its mtime: an edit before the guest runs isn't a change by the
    /// sandbox.
    fn keep_mtime(&mut self, directory: Ino) -> Result<()> {
        if self.kind == Kind::Layer {
            let mtime = self.view.upper.stat(directory)?.mtime;
            self.mtimes.entry(directory).or_insert(mtime);
        }
        Ok(())
    }
}

/// Writes all of `contents` into a file, and returns the number of bytes.
fn write<D: BlockDevice>(
    upper: &mut Ext4<D>,
    ino: Ino,
    offset: u64,
    contents: &mut dyn Read,
    buffer: &mut [u8],
) -> Result<u64> {
    let mut total = 0;
    while let Some(mut left) = piece(contents, buffer)? {
        while !left.is_empty() {
            let written = upper.write(ino, offset.saturating_add(total), left)?;
            total += written as u64;
            left = left.get(written..).unwrap_or_default();
        }
    }
    Ok(total)
}
