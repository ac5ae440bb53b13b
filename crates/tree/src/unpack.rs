//! Unpacks the members of an archive into a directory.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};

use micabox_tar::{Attributes, Kind, Member, Segment, Timestamp};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chmodat, chownat,
    fchmod, fchown, fsetxattr, fstat, futimens, linkat, mkdirat, mknodat, openat, renameat, statat,
    symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use crate::{Error, Result, Root, split};

/// Bytes of contents that are written at a time.
const PIECE: usize = 256 << 10;

/// Options of unpacking.
#[derive(Clone, Copy, Debug)]
pub struct Unpacking {
    /// Whether files get the owners that the archive gives; otherwise the caller owns them.
    pub owners: bool,
    /// Whether files keep set-id bits.
    pub set_id: bool,
    /// Whether devices and FIFOs are made; otherwise they are left out.
    pub special: bool,
    /// Whether missing directories are made.
    pub parents: bool,
    /// Whether a file gets its name only when it is complete. Otherwise what has the name is removed
    /// first.
    pub whole: bool,
    /// Which extended attributes are set, by their full names.
    pub xattrs: fn(&[u8]) -> bool,
}

/// What was left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Path of the first device or FIFO.
    pub special: Option<Vec<u8>>,
    /// How many devices and FIFOs.
    pub specials: u64,
    /// Path of the first file with an extended attribute that can't be set there, and the attribute.
    pub xattr: Option<(Vec<u8>, Vec<u8>)>,
    /// How many such attributes.
    pub xattrs: u64,
}

/// Unpacks members one by one.
#[derive(Debug)]
pub struct Unpacker {
    root: Root,
    options: Unpacking,
    /// The directory of the last member, by its path.
    parent: Option<(Vec<u8>, OwnedFd)>,
    /// Directories, whose attributes are set at the end.
    directories: Vec<Late>,
    buffer: Vec<u8>,
    unpacked: Unpacked,
}

#[derive(Debug)]
struct Late {
    path: Vec<u8>,
    /// Device and inode.
    identity: (u64, u64),
    attributes: Attributes,
}

impl Unpacker {
    /// Unpacks into `root`.
    pub fn new(root: Root, options: Unpacking) -> Self {
        Self {
            root,
            options,
            parent: None,
            directories: Vec::new(),
            buffer: vec![0; PIECE],
            unpacked: Unpacked::default(),
        }
    }

    /// Adds a member as `path`. `target` is the path of the file that a hard link is another name of.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Archive`]; a part may be unpacked then.
    pub fn add(
        &mut self,
        path: &[u8],
        target: &[u8],
        member: &Member,
        body: &mut dyn Read,
    ) -> Result<()> {
        for path in [path, target] {
            if path.split(|byte| *byte == b'/').any(|name| name == b"..") {
                let path = path.escape_ascii();
                return Err(Error::Archive(format!("`..` in the path \"{path}\"")));
            }
        }
        let at = |errno: Errno| Error::file(path, errno);
        let attributes = &member.attributes;
        if member.kind == Kind::Directory {
            return self.directory(path, attributes).map_err(at);
        }
        let (_, name) = split(path).ok_or_else(|| at(Errno::ISDIR))?;
        let directory = self.parent(path).map_err(at)?;
        let directory = directory.as_fd();
        match &member.kind {
            Kind::Directory => Ok(()),
            Kind::File { size, segments } => {
                let whole = [Segment::whole(*size)];
                let segments = segments.as_deref().unwrap_or(&whole);
                self.file(directory, name, path, (*size, segments), attributes, body)
            }
            Kind::Symlink(link) => self.symlink(directory, name, link, attributes).map_err(at),
            Kind::HardLink(_) => self.hard_link(directory, name, target).map_err(at),
            Kind::CharDevice(..) | Kind::BlockDevice(..) | Kind::Fifo => {
                let (kind, device) = match member.kind {
                    Kind::CharDevice(major, minor) => {
                        (FileType::CharacterDevice, rustix::fs::makedev(major, minor))
                    }
                    Kind::BlockDevice(major, minor) => {
                        (FileType::BlockDevice, rustix::fs::makedev(major, minor))
                    }
                    _ => (FileType::Fifo, 0),
                };
                let made = if self.options.special {
                    self.node(directory, name, kind, device, attributes)
                } else {
                    Err(Errno::PERM)
                };
                match made {
                    Err(Errno::PERM) => {
                        self.unpacked.special.get_or_insert_with(|| path.to_vec());
                        self.unpacked.specials += 1;
                        Ok(())
                    }
                    made => made.map_err(at),
                }
            }
        }
    }

    /// Sets the attributes of directories, and returns what was left out.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn finish(mut self) -> Result<Unpacked> {
        // Children first: their parents may become unsearchable.
        while let Some(late) = self.directories.pop() {
            self.close(&late)
                .map_err(|errno| Error::file(&late.path, errno))?;
        }
        Ok(self.unpacked)
    }

    /// Returns the directory that a path's last name is in.
    fn parent(&mut self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let (parent, _) = split(path).ok_or(Errno::ISDIR)?;
        let known = self.parent.as_ref().filter(|(path, _)| path == parent);
        if let Some((_, directory)) = known {
            return rustix::io::fcntl_dupfd_cloexec(directory, 3);
        }
        let directory = if self.options.parents {
            self.root.made_directory(parent)?
        } else {
            self.root.directory(parent)?
        };
        let known = rustix::io::fcntl_dupfd_cloexec(&directory, 3)?;
        self.parent = Some((parent.to_vec(), known));
        Ok(directory)
    }

    /// Makes a directory, or uses the one that is there.
    fn directory(&mut self, path: &[u8], attributes: &Attributes) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = match split(path) {
            None if self.options.parents => self.root.made_directory(path).map(drop),
            None => Ok(()),
            Some((_, name)) => {
                let parent = self.parent(path)?;
                match mkdirat(&parent, name, Mode::RWXU) {
                    Err(Errno::EXIST) => Ok(()),
                    made => made,
                }
            }
        }
        .and_then(|()| self.root.open(path, flags, Mode::empty()));
        let directory = match directory {
            Err(Errno::LOOP) => return Err(Errno::NOTDIR),
            directory => directory?,
        };
        let stat = fstat(&directory)?;
        // Writable until everything is in it.
        if stat.st_mode & 0o700 != 0o700 && !rustix::process::geteuid().is_root() {
            fchmod(
                &directory,
                Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700),
            )?;
        }
        self.directories.push(Late {
            path: path.to_vec(),
            identity: (stat.st_dev, stat.st_ino),
            attributes: attributes.clone(),
        });
        Ok(())
    }

    fn close(&mut self, late: &Late) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = match self.root.open(&late.path, flags, Mode::empty()) {
            // Removed meanwhile.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            directory => directory?,
        };
        let stat = fstat(&directory)?;
        if (stat.st_dev, stat.st_ino) != late.identity {
            return Ok(());
        }
        self.set(&directory, &late.path, &late.attributes, 0o1777)
    }

    fn file(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        (size, segments): (u64, &[Segment]),
        attributes: &Attributes,
        body: &mut dyn Read,
    ) -> Result<()> {
        let at = |errno: Errno| Error::file(path, errno);
        let new = if self.options.whole {
            New::whole(directory)
        } else {
            self.replaced(directory, name)
        };
        let new = new.map_err(at)?;
        for segment in segments {
            let mut offset = segment.offset;
            let end = segment.end();
            while offset < end {
                let count = (end - offset).min(PIECE as u64) as usize;
                let piece = self.buffer.get_mut(..count).unwrap_or_default();
                body.read_exact(piece).map_err(|error| {
                    let path = path.escape_ascii();
                    Error::Archive(match error.kind() {
                        io::ErrorKind::UnexpectedEof => {
                            format!("the archive ends in the middle of \"{path}\"")
                        }
                        _ => format!("reading \"{path}\" from the archive: {error}"),
                    })
                })?;
                let written = new.file.write_all_at(piece, offset);
                written.map_err(|error| Error::file(path, error))?;
                offset += count as u64;
            }
        }
        new.file
            .set_len(size)
            .map_err(|error| Error::file(path, error))?;
        self.set(&new.file, path, attributes, 0o777).map_err(at)?;
        new.publish(directory, name).map_err(at)
    }

    /// Makes an empty file in the place of what has the name.
    fn replaced(&mut self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<New, Errno> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match self.clear(directory, name) {
            // Something is mounted there: that is written to.
            Err(Errno::BUSY) => {
                let flags = flags | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::NOCTTY;
                openat(directory, name, flags, Mode::empty())?
            }
            cleared => {
                cleared?;
                let flags = flags | OFlags::CREATE | OFlags::EXCL;
                openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?
            }
        };
        Ok(New {
            file: file.into(),
            temporary: Temporary::None,
        })
    }

    fn symlink(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        target: &[u8],
        attributes: &Attributes,
    ) -> Result<(), Errno> {
        self.clear(directory, name)?;
        self.parent = None;
        symlinkat(target, directory, name)?;
        if self.options.owners {
            let (uid, gid) = owner(attributes);
            chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let times = times(attributes.mtime);
        utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn hard_link(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        target: &[u8],
    ) -> Result<(), Errno> {
        let (from, first) = self.root.parent(target)?;
        let stat = statat(&from, first, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if self.root.is_without_links() && !is_file {
            return Err(Errno::PERM);
        }
        // Two names of one file can't replace each other.
        let same = |other: &Stat| (other.st_dev, other.st_ino) == (stat.st_dev, stat.st_ino);
        if statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|other| same(&other)) {
            return Ok(());
        }
        self.clear(directory, name)?;
        linkat(&from, first, directory, name, AtFlags::empty())
    }

    fn node(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        kind: FileType,
        device: u64,
        attributes: &Attributes,
    ) -> Result<(), Errno> {
        self.clear(directory, name)?;
        let mode = Mode::from_raw_mode(u32::from(attributes.mode) & 0o777);
        mknodat(directory, name, kind, mode, device)?;
        // What was made, and not what has its name by now.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let node = openat(directory, name, flags, Mode::empty())?;
        let stat = fstat(&node)?;
        if FileType::from_raw_mode(stat.st_mode) != kind || stat.st_rdev != device {
            return Ok(());
        }
        if self.options.owners {
            let (uid, gid) = owner(attributes);
            chownat(&node, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        // The mode is without the bits of the umask, which only the host has.
        if self.root.is_without_links() {
            chmodat(directory, name, mode, AtFlags::empty())?;
        }
        utimensat(&node, "", &times(attributes.mtime), AtFlags::EMPTY_PATH)
    }

    /// Removes what has a name, unless it is a directory.
    fn clear(&mut self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        match unlinkat(directory, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            result => {
                result?;
                // It may have been a link on the way to it.
                self.parent = None;
                Ok(())
            }
        }
    }

    /// Sets the attributes of a file or directory.
    fn set(
        &mut self,
        file: impl AsFd,
        path: &[u8],
        attributes: &Attributes,
        plain: u32,
    ) -> Result<(), Errno> {
        if self.options.owners {
            let (uid, gid) = owner(attributes);
            fchown(&file, uid, gid)?;
        }
        let bits = if self.options.set_id { 0o7777 } else { plain };
        fchmod(
            &file,
            Mode::from_raw_mode(u32::from(attributes.mode) & bits),
        )?;
        for (name, value) in &attributes.xattrs {
            if !(self.options.xattrs)(name) {
                continue;
            }
            match fsetxattr(&file, &**name, value, rustix::fs::XattrFlags::empty()) {
                Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS | Errno::INVAL) => {
                    let first = || (path.to_vec(), name.clone());
                    self.unpacked.xattr.get_or_insert_with(first);
                    self.unpacked.xattrs += 1;
                }
                result => result?,
            }
        }
        futimens(&file, &times(attributes.mtime))
    }
}

/// A file that is being written.
struct New {
    file: File,
    temporary: Temporary,
}

/// The name of a file that is being written.
enum Temporary {
    /// It has its own.
    None,
    /// It has none.
    Unnamed,
    /// It has one for now.
    Named(Unfinished),
}

/// A name that is removed unless the file gets its own.
struct Unfinished {
    directory: OwnedFd,
    name: Vec<u8>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = unlinkat(&self.directory, &*self.name, AtFlags::empty());
    }
}

impl New {
    /// Makes a file without a name; where the filesystem can't, one with another name.
    fn whole(directory: BorrowedFd<'_>) -> Result<Self, Errno> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        match openat(directory, ".", flags, mode) {
            Ok(file) => Ok(Self {
                file: file.into(),
                temporary: Temporary::Unnamed,
            }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let unfinished = Unfinished::new(directory)?;
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = openat(directory, &*unfinished.name, flags, mode)?;
                Ok(Self {
                    file: file.into(),
                    temporary: Temporary::Named(unfinished),
                })
            }
            Err(errno) => Err(errno),
        }
    }

    /// Gives the file its name, in the place of another file.
    fn publish(self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        let link = |name: &[u8]| {
            let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            linkat(CWD, from, directory, name, AtFlags::SYMLINK_FOLLOW)
        };
        let unfinished = match self.temporary {
            Temporary::None => return Ok(()),
            Temporary::Named(unfinished) => unfinished,
            Temporary::Unnamed => match link(name) {
                // A link can't replace a file, but a rename can.
                Err(Errno::EXIST) => {
                    let unfinished = Unfinished::new(directory)?;
                    link(&unfinished.name)?;
                    unfinished
                }
                result => return result,
            },
        };
        renameat(directory, &*unfinished.name, directory, name)
    }
}

impl Unfinished {
    fn new(directory: BorrowedFd<'_>) -> Result<Self, Errno> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            directory: rustix::io::fcntl_dupfd_cloexec(directory, 3)?,
            name: format!(".mica-{}-{count}.part", std::process::id()).into_bytes(),
        })
    }
}

fn owner(attributes: &Attributes) -> (Option<Uid>, Option<Gid>) {
    (
        Some(Uid::from_raw(attributes.uid)),
        Some(Gid::from_raw(attributes.gid)),
    )
}

/// Returns a time as that of the last change, and leaves the last access alone.
fn times(Timestamp { seconds, nanos }: Timestamp) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: seconds,
            tv_nsec: nanos.into(),
        },
    }
}
