//! An upper layer over an image, written as overlayfs would.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};

use micabox_ext4::{
    BlockDevice, Errno, Ext4, FileKind, Ino, Options, Owner, ROOT, SetAttributes, SetXattr, Stat,
    Timestamp,
};

use crate::base::{Lower, LowerError, Node};
use crate::upper::{OPAQUE, OVERLAY, is_whiteout};

/// As many symbolic links as Linux follows.
const LINKS: usize = 40;

/// Bytes of a file that are copied at once.
const PIECE: usize = 1 << 20;

/// Why something can't be done, in words.
#[derive(Debug)]
pub(super) struct Problem(String);

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<micabox_ext4::Error> for Problem {
    fn from(error: micabox_ext4::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<LowerError> for Problem {
    fn from(error: LowerError) -> Self {
        Self(error.to_string())
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<&str> for Problem {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

type Result<T> = std::result::Result<T, Problem>;

/// What something new is like.
#[derive(Clone, Debug)]
pub(super) struct Attributes {
    pub(super) owner: Owner,
    /// Otherwise now.
    pub(super) mtime: Option<Timestamp>,
    /// Names and values.
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// Root's, and new.
    pub(super) fn root(permissions: u16) -> Self {
        Self {
            owner: Owner::root(permissions),
            mtime: None,
            xattrs: Vec::new(),
        }
    }
}

/// A directory in the upper layer.
#[derive(Clone, Debug)]
pub(super) struct Place {
    ino: Ino,
    /// The image's directory that shines through.
    below: Option<Node>,
}

/// What is at a name.
enum Found {
    Nothing,
    /// The image's is gone.
    Whiteout,
    Upper(Stat),
    Below(Node),
}

/// An upper layer over an image.
pub(super) struct Overlay<D> {
    upper: Ext4<D>,
    lower: Lower,
    root: Place,
    /// Times that directories had before something was changed in them, or are to have.
    mtimes: BTreeMap<Ino, Timestamp>,
}

impl<D: BlockDevice> Overlay<D> {
    /// Opens the upper layer on `disk`, in the directory `/root` there, which is made if it
    /// is missing, over `lower`.
    pub(super) fn open(disk: D, mut lower: Lower) -> Result<Self> {
        let mut upper = Ext4::open(disk, Options::default())?;
        let below = lower.root()?;
        let (ino, is_new) = match upper.lookup(ROOT, b"root") {
            Ok(ino) => (ino, false),
            Err(error) if error.errno() == Errno::NotFound => {
                (upper.mkdir(ROOT, b"root", Owner::root(0o755))?, true)
            }
            Err(error) => return Err(error.into()),
        };
        let mut overlay = Self {
            upper,
            lower,
            root: Place {
                ino,
                below: Some(below.clone()),
            },
            mtimes: BTreeMap::new(),
        };
        if is_new {
            overlay.copy_attributes(ino, &below)?;
        }
        Ok(overlay)
    }

    /// Writes everything to the disk.
    pub(super) fn close(mut self) -> Result<()> {
        for (ino, mtime) in std::mem::take(&mut self.mtimes) {
            let times = SetAttributes {
                mtime: Some(mtime),
                ..SetAttributes::default()
            };
            match self.upper.set_attributes(ino, &times) {
                // Removed since.
                Err(error) if error.errno() == Errno::Stale => {}
                result => result?,
            }
        }
        self.upper.close()?;
        Ok(())
    }

    /// The directory at `path`, brought up from the image or made if need be.
    pub(super) fn directory(&mut self, path: &[u8]) -> Result<Place> {
        let mut names: VecDeque<Vec<u8>> = split(path).map(<[u8]>::to_vec).collect();
        let mut places = vec![self.root.clone()];
        let mut links = 0;
        while let (Some(name), Some(place)) = (names.pop_front(), places.last().cloned()) {
            if name == b".." {
                places.truncate(places.len().saturating_sub(1).max(1));
                continue;
            }
            let target = match self.find(&place, &name)? {
                Found::Upper(stat) => match stat.kind() {
                    Some(FileKind::Directory) => {
                        let below = self.below(&place, &name)?;
                        let below = below.filter(|node| node.kind == FileKind::Directory);
                        let is_opaque = self.is_opaque(stat.ino)?;
                        places.push(Place {
                            ino: stat.ino,
                            below: below.filter(|_| !is_opaque),
                        });
                        continue;
                    }
                    Some(FileKind::Symlink) => self.upper.read_link(stat.ino)?,
                    _ => return Err("something on the way is no directory".into()),
                },
                Found::Below(node) => match node.kind {
                    FileKind::Directory => {
                        places.push(self.copy_up(&place, &name, node)?);
                        continue;
                    }
                    FileKind::Symlink => self.lower.read_link(&node)?,
                    _ => return Err("something on the way is no directory".into()),
                },
                found => {
                    places.push(self.new_directory(&place, &name, &found)?);
                    continue;
                }
            };
            links += 1;
            if links > LINKS {
                return Err("too many symbolic links on the way".into());
            }
            if target.starts_with(b"/") {
                places.truncate(1);
            }
            for name in split(&target).rev() {
                names.push_front(name.to_vec());
            }
        }
        places.pop().ok_or_else(|| "there is no such path".into())
    }

    /// Gives a directory attributes.
    pub(super) fn set_directory(&mut self, place: &Place, attributes: &Attributes) -> Result<()> {
        self.set(place.ino, attributes)?;
        if let Some(mtime) = attributes.mtime {
            self.mtimes.insert(place.ino, mtime);
        }
        Ok(())
    }

    /// Whether there is a directory at `path` itself, no symbolic link to one.
    pub(super) fn is_directory(&mut self, path: &[u8]) -> Result<bool> {
        let Some((parent, name)) = parent_and_name(path) else {
            return Ok(true);
        };
        let place = self.directory(parent)?;
        Ok(match self.find(&place, name)? {
            Found::Upper(stat) => stat.kind() == Some(FileKind::Directory),
            Found::Below(node) => node.kind == FileKind::Directory,
            _ => false,
        })
    }

    /// Makes a file of `size` bytes or more in place of one that is there. `contents` gives its
    /// parts, one after the other, each of which has an offset and a length; the rest are holes.
    pub(super) fn file(
        &mut self,
        path: &[u8],
        attributes: &Attributes,
        size: u64,
        parts: &[(u64, u64)],
        contents: &mut dyn Read,
    ) -> Result<()> {
        let (place, name) = self.clear(path)?;
        let ino = self.upper.create(place.ino, name, attributes.owner)?;
        self.upper.truncate(ino, size)?;
        let mut buffer = vec![0; PIECE];
        for &(offset, length) in parts {
            self.write(ino, offset, &mut contents.take(length), &mut buffer)?;
        }
        self.set(ino, attributes)
    }

    /// Writes all that `contents` gives into a file.
    fn write(
        &mut self,
        ino: Ino,
        mut offset: u64,
        contents: &mut dyn Read,
        buffer: &mut [u8],
    ) -> Result<()> {
        loop {
            let count = match contents.read(buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let mut piece = buffer.get(..count).unwrap_or_default();
            while !piece.is_empty() {
                let written = self.upper.write(ino, offset, piece)?;
                offset += written as u64;
                piece = piece.get(written..).unwrap_or_default();
            }
        }
    }

    /// Makes a symbolic link in place of what is there, unless that is a directory.
    pub(super) fn symlink(
        &mut self,
        path: &[u8],
        target: &[u8],
        attributes: &Attributes,
    ) -> Result<Ino> {
        let (place, name) = self.clear(path)?;
        let ino = self
            .upper
            .symlink(place.ino, name, target, attributes.owner)?;
        self.set(ino, attributes)?;
        Ok(ino)
    }

    /// Makes a device or FIFO in place of what is there, unless that is a directory.
    pub(super) fn node(
        &mut self,
        path: &[u8],
        kind: FileKind,
        device: (u32, u32),
        attributes: &Attributes,
    ) -> Result<Ino> {
        if kind == FileKind::CharDevice && device == (0, 0) {
            return Err("a device 0, 0 would mean that something is gone".into());
        }
        let (place, name) = self.clear(path)?;
        let ino = self
            .upper
            .mknod(place.ino, name, kind, device, attributes.owner)?;
        self.set(ino, attributes)?;
        Ok(ino)
    }

    /// Gives a file of the upper layer another name.
    pub(super) fn link(&mut self, path: &[u8], target: &[u8]) -> Result<()> {
        let (parent, name) = parent_and_name(target).ok_or("a link to the root")?;
        let place = self.directory(parent)?;
        let Found::Upper(stat) = self.find(&place, name)? else {
            return Err("a hard link to a file that is not in the archive before it".into());
        };
        let (place, name) = self.clear(path)?;
        Ok(self.upper.link(stat.ino, place.ino, name)?)
    }

    /// Removes what is at `path`, with everything below it.
    pub(super) fn remove(&mut self, path: &[u8]) -> Result<()> {
        let (parent, name) = parent_and_name(path).ok_or("the root can't be removed")?;
        let place = self.directory(parent)?;
        let nothing = || Problem::from("there is nothing of that name");
        match self.find(&place, name)? {
            Found::Nothing | Found::Whiteout => return Err(nothing()),
            Found::Upper(stat) => {
                self.keep_mtime(place.ino)?;
                self.remove_upper(place.ino, name, &stat)?;
            }
            Found::Below(_) => self.keep_mtime(place.ino)?,
        }
        if self.below(&place, name)?.is_some() {
            let owner = Owner::root(0);
            self.upper
                .mknod(place.ino, name, FileKind::CharDevice, (0, 0), owner)?;
        }
        Ok(())
    }

    fn remove_upper(&mut self, parent: Ino, name: &[u8], stat: &Stat) -> Result<()> {
        if stat.kind() != Some(FileKind::Directory) {
            return Ok(self.upper.unlink(parent, name)?);
        }
        // Directories first, so that each is empty when its turn comes from behind.
        let mut order = vec![(parent, name.to_vec(), stat.ino)];
        let mut at = 0;
        while let Some((_, _, directory)) = order.get(at).cloned() {
            at += 1;
            for entry in self.upper.read_dir(directory)? {
                if self.upper.stat(entry.ino)?.kind() == Some(FileKind::Directory) {
                    order.push((directory, entry.name.into_vec(), entry.ino));
                } else {
                    self.upper.unlink(directory, &entry.name)?;
                }
            }
        }
        for (parent, name, ino) in order.into_iter().rev() {
            self.upper.rmdir(parent, &name)?;
            self.mtimes.remove(&ino);
        }
        Ok(())
    }

    /// A place where there is nothing in the way any more, and the name there.
    fn clear<'a>(&mut self, path: &'a [u8]) -> Result<(Place, &'a [u8])> {
        let (parent, name) = parent_and_name(path).ok_or("there is a directory")?;
        let place = self.directory(parent)?;
        let found = self.find(&place, name)?;
        let is_directory = match &found {
            Found::Upper(stat) => stat.kind() == Some(FileKind::Directory),
            Found::Below(node) => node.kind == FileKind::Directory,
            _ => false,
        };
        if is_directory {
            return Err("there is a directory".into());
        }
        self.keep_mtime(place.ino)?;
        if matches!(found, Found::Upper(_) | Found::Whiteout) {
            self.upper.unlink(place.ino, name)?;
        }
        Ok((place, name))
    }

    fn find(&mut self, place: &Place, name: &[u8]) -> Result<Found> {
        let ino = match self.upper.lookup(place.ino, name) {
            Ok(ino) => ino,
            Err(error) if error.errno() == Errno::NotFound => {
                let below = self.below(place, name)?;
                return Ok(below.map_or(Found::Nothing, Found::Below));
            }
            Err(error) => return Err(error.into()),
        };
        let stat = self.upper.stat(ino)?;
        Ok(match is_whiteout(&stat) {
            true => Found::Whiteout,
            false => Found::Upper(stat),
        })
    }

    /// What the image has at a name.
    fn below(&mut self, place: &Place, name: &[u8]) -> Result<Option<Node>> {
        match &place.below {
            Some(directory) => Ok(self.lower.lookup(directory, name)?),
            None => Ok(None),
        }
    }

    fn is_opaque(&mut self, directory: Ino) -> Result<bool> {
        match self.upper.xattr(directory, OPAQUE) {
            Ok(value) => Ok(value == b"y"),
            Err(error) if error.errno() == Errno::NoAttribute => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a directory of the image one of the upper layer, as it is.
    fn copy_up(&mut self, place: &Place, name: &[u8], below: Node) -> Result<Place> {
        self.keep_mtime(place.ino)?;
        let ino = self.upper.mkdir(place.ino, name, Owner::root(0o755))?;
        self.copy_attributes(ino, &below)?;
        Ok(Place {
            ino,
            below: Some(below),
        })
    }

    fn copy_attributes(&mut self, ino: Ino, below: &Node) -> Result<()> {
        let xattrs = self.lower.xattrs(below)?.into_iter();
        let attributes = Attributes {
            owner: Owner {
                permissions: below.permissions,
                uid: below.uid,
                gid: below.gid,
            },
            mtime: Some(below.mtime),
            // overlayfs's own are about the layer they are in.
            xattrs: xattrs
                .filter(|(name, _)| !name.starts_with(OVERLAY))
                .collect(),
        };
        self.set(ino, &attributes)?;
        self.mtimes
            .extend(attributes.mtime.map(|mtime| (ino, mtime)));
        Ok(())
    }

    /// Makes a directory where there is none; what the image had there stays gone.
    fn new_directory(&mut self, place: &Place, name: &[u8], found: &Found) -> Result<Place> {
        self.keep_mtime(place.ino)?;
        let was_there = matches!(found, Found::Whiteout);
        if was_there {
            self.upper.unlink(place.ino, name)?;
        }
        let ino = self.upper.mkdir(place.ino, name, Owner::root(0o755))?;
        if was_there {
            self.upper.set_xattr(ino, OPAQUE, b"y", SetXattr::Any)?;
        }
        Ok(Place { ino, below: None })
    }

    fn set(&mut self, ino: Ino, attributes: &Attributes) -> Result<()> {
        for (name, value) in &attributes.xattrs {
            self.upper.set_xattr(ino, name, value, SetXattr::Any)?;
        }
        let Owner {
            permissions,
            uid,
            gid,
        } = attributes.owner;
        // Last: the others change times, and an owner takes set-uid bits away.
        let set = SetAttributes {
            permissions: Some(permissions),
            uid: Some(uid),
            gid: Some(gid),
            mtime: attributes.mtime,
            ..SetAttributes::default()
        };
        Ok(self.upper.set_attributes(ino, &set)?)
    }

    /// What is changed in a directory of the image's before anybody sees it is no change of
    /// the sandbox's.
    fn keep_mtime(&mut self, directory: Ino) -> Result<()> {
        let mtime = self.upper.stat(directory)?.mtime;
        self.mtimes.entry(directory).or_insert(mtime);
        Ok(())
    }
}

/// The names in a path.
fn split(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    let names = path.split(|byte| *byte == b'/');
    names.filter(|name| !name.is_empty() && *name != b".")
}

/// The path of a parent and the last name; `None` for a path that ends in no name.
fn parent_and_name(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let path = path.get(..end)?;
    let start = path
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |slash| slash + 1);
    let (parent, name) = path.split_at_checked(start)?;
    (name != b"." && name != b"..").then_some((parent, name))
}
