//! Packs a file, or a directory with everything below it, into an archive.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use micabox_tar::{Attributes, Kind, Member, Segment, Timestamp, Writer};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat, fstat, fstatfs, openat, readlinkat, seek,
    statat,
};
use rustix::io::Errno;

use crate::{Error, Result, Root, TRIES, split, xattr};

/// Bytes that are written at a time.
const BUFFER: usize = 256 << 10;

/// Maximum length of a path in an archive, as its reader has it.
const PATH_MAX: usize = 16 << 10;

/// Maximum number of a file's parts with contents. What comes after them counts as one.
const SEGMENTS: usize = 1 << 16;

/// Most bytes of a file whose size is not known before it is read, as in `/proc`.
const UNSIZED: u64 = 16 << 20;

/// The magic numbers of filesystems whose files don't have the size that they say: proc, sysfs, the
/// two versions of cgroups, tracefs, debugfs, securityfs.
const UNSIZED_FILESYSTEMS: [u32; 7] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x7472_6163,
    0x6462_6720,
    0x7363_6673,
];

/// The magic numbers of other filesystems that show the kernel's state and hold nobody's files: devpts, mqueue,
/// bpf, pstore, configfs, efivarfs, selinuxfs, smackfs, binfmt_misc, fusectl, nsfs, rpc_pipefs, binder.
const OTHER_KERNEL_FILESYSTEMS: [u32; 13] = [
    0x1cd1,
    0x1980_0202,
    0xcafe_4a11,
    0x6165_676c,
    0x6265_6570,
    0xde5e_81e4,
    0xf97c_ff8c,
    0x4341_5d53,
    0x4249_4e4d,
    0x6573_5543,
    0x6e73_6673,
    0x6759_6969,
    0x6c6f_6f70,
];

/// Options of packing.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    /// Whether owners are kept; otherwise root owns everything.
    pub owners: bool,
    /// Which extended attributes are kept, by their full names.
    pub xattrs: fn(&[u8]) -> bool,
    /// Whether a device, FIFO or socket is an error.
    pub only_plain: bool,
    /// A directory by device and inode, on which a filesystem with devices is mounted. As of the kernel's own
    /// filesystems, nothing of it is packed but the empty directory, unless it is what is packed.
    pub devices: Option<(u64, u64)>,
}

/// A file that the archive does not have: archives can't hold sockets.
#[derive(Debug, PartialEq, Eq)]
pub struct LeftOut<'a>(pub &'a [u8]);

/// What is packed.
#[derive(Debug)]
pub enum Source {
    /// A name in a directory.
    Named(OwnedFd, Vec<u8>),
    /// An open file.
    Opened(OwnedFd),
}

impl Source {
    /// Finds what is at a path. A symbolic link at its end is followed only if `follow`, or if the
    /// path goes on with a slash or a dot.
    ///
    /// # Errors
    /// The system's.
    pub fn open(root: &Root, path: &[u8], follow: bool) -> Result<Self, Errno> {
        if !follow
            && !path.ends_with(b"/")
            && let Some((parent, name)) = split(path)
        {
            let parent = root.directory(parent)?;
            statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            return Ok(Self::Named(parent, name.to_vec()));
        }
        let found = root.open(path, OFlags::PATH, Mode::empty())?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(Self::Opened(match kind(&fstat(&found)?) {
            FileType::Directory => openat(&found, ".", READ | OFlags::DIRECTORY, Mode::empty())?,
            FileType::RegularFile => root.open(path, flags, Mode::empty())?,
            // Only described.
            _ => found,
        }))
    }

    /// Writes it as an archive, with the members below `name`, or at the top if `name` is empty.
    /// Names are in the order of their bytes. A file that disappears meanwhile is left out; one that
    /// shrinks is filled up with zeros. What is mounted below it belongs to it, but for the kernel's own
    /// filesystems (`/proc`, `/sys`): many of their files can't be read, and each of these is an empty directory.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Output`].
    pub fn pack(
        self,
        name: &[u8],
        packing: Packing,
        output: impl Write,
        left_out: &mut dyn FnMut(LeftOut<'_>),
    ) -> Result<()> {
        let mut archive = Archive {
            writer: Writer::new(BufWriter::with_capacity(BUFFER, output)),
            packing,
            linked: BTreeMap::new(),
            left_out,
        };
        let mut path = name.to_vec();
        let top = match self {
            Self::Named(parent, name) => match archive.entry(parent.as_fd(), None, &name, &path)? {
                Entry::Gone => return Err(Error::file(&path, Errno::NOENT)),
                Entry::Added => None,
                Entry::Directory(level) => Some(level),
            },
            Self::Opened(file) => archive.opened(file, None, &path)?,
        };
        let mut stack = Vec::from_iter(top);
        while let Some(level) = stack.last_mut() {
            path.truncate(level.length);
            let Some(name) = level.names.pop() else {
                stack.pop();
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            if path.len() > PATH_MAX {
                return Err(Error::file(&path, Errno::NAMETOOLONG));
            }
            let (directory, device) = (level.directory.as_fd(), Some(level.device));
            if let Entry::Directory(below) = archive.entry(directory, device, &name, &path)? {
                stack.push(below);
            }
        }
        archive
            .writer
            .finish()?
            .into_inner()
            .map_err(|error| error.into_error())?;
        Ok(())
    }
}

const READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

/// A directory whose entries are being added.
struct Level {
    directory: OwnedFd,
    /// The device that it is on.
    device: u64,
    /// In reverse order.
    names: Vec<Vec<u8>>,
    /// Length of the directory's path.
    length: usize,
}

enum Entry {
    Gone,
    Added,
    Directory(Level),
}

struct Archive<'a, W: Write> {
    writer: Writer<BufWriter<W>>,
    packing: Packing,
    /// First names of files that have several, by device and inode.
    linked: BTreeMap<(u64, u64), Vec<u8>>,
    left_out: &'a mut dyn FnMut(LeftOut<'_>),
}

impl<W: Write> Archive<'_, W> {
    /// Adds what has a name in a directory, which is on `above`; None at the top.
    fn entry(
        &mut self,
        directory: BorrowedFd<'_>,
        above: Option<u64>,
        name: &[u8],
        path: &[u8],
    ) -> Result<Entry> {
        let at = |errno: Errno| Error::file(path, errno);
        for _ in 0..TRIES {
            let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Ok(Entry::Gone),
                stat => stat.map_err(at)?,
            };
            if kind(&stat) != FileType::Directory && self.is_link(&stat, path)? {
                return Ok(Entry::Added);
            }
            let flags = match kind(&stat) {
                FileType::Directory => READ | OFlags::DIRECTORY,
                // Whatever is there by now: opening it must not wait.
                FileType::RegularFile => READ | OFlags::NONBLOCK | OFlags::NOCTTY,
                _ => OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            };
            let file = match openat(directory, name, flags, Mode::empty()) {
                Err(Errno::NOENT) => return Ok(Entry::Gone),
                // Something else has the name now.
                Err(Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => continue,
                file => file.map_err(at)?,
            };
            if kind(&fstat(&file).map_err(at)?) == kind(&stat) {
                return Ok(match self.opened(file, above, path)? {
                    Some(level) => Entry::Directory(level),
                    None => Entry::Added,
                });
            }
        }
        Err(at(Errno::AGAIN))
    }

    /// Adds an open file, and returns it if it is a directory.
    fn opened(&mut self, file: OwnedFd, above: Option<u64>, path: &[u8]) -> Result<Option<Level>> {
        let at = |errno: Errno| Error::file(path, errno);
        let stat = fstat(&file).map_err(at)?;
        let (major, minor) = (
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        );
        if self.packing.only_plain && is_special(kind(&stat)) {
            let what = io::Error::other("devices, FIFOs and sockets are not copied in");
            return Err(Error::file(path, what));
        }
        let member = match kind(&stat) {
            FileType::RegularFile => {
                self.file(&file.into(), &stat, path)?;
                return Ok(None);
            }
            FileType::Directory => {
                if !path.is_empty() {
                    let xattrs = self.xattrs(file.as_fd(), path)?;
                    self.add(path, &stat, Kind::Directory, xattrs)?;
                }
                let is_mounted = above.is_some_and(|above| above != stat.st_dev);
                if is_mounted && self.is_the_kernels(&file, &stat) {
                    return Ok(None);
                }
                let names = names(&file).map_err(at)?;
                return Ok(Some(Level {
                    directory: file,
                    device: stat.st_dev,
                    names,
                    length: path.len(),
                }));
            }
            FileType::Symlink => {
                let target = readlinkat(&file, "", Vec::new()).map_err(at)?;
                Kind::Symlink(target.into_bytes())
            }
            FileType::CharacterDevice => Kind::CharDevice(major, minor),
            FileType::BlockDevice => Kind::BlockDevice(major, minor),
            FileType::Fifo => Kind::Fifo,
            _ => {
                (self.left_out)(LeftOut(path));
                return Ok(None);
            }
        };
        self.add(path, &stat, member, Vec::new())?;
        Ok(None)
    }

    /// Returns whether what is mounted on a directory is the machine's, and nobody's files.
    fn is_the_kernels(&self, directory: &OwnedFd, stat: &Stat) -> bool {
        self.packing.devices == Some((stat.st_dev, stat.st_ino))
            || is_one_of(directory, &UNSIZED_FILESYSTEMS)
            || is_one_of(directory, &OTHER_KERNEL_FILESYSTEMS)
    }

    /// Adds another name of a file that is in the archive; returns false if it is not there yet.
    fn is_link(&mut self, stat: &Stat, path: &[u8]) -> Result<bool> {
        if stat.st_nlink < 2 || kind(stat) == FileType::Socket {
            return Ok(false);
        }
        let file = (stat.st_dev, stat.st_ino);
        let Some(first) = self.linked.get(&file) else {
            self.linked.insert(file, path.to_vec());
            return Ok(false);
        };
        let link = Kind::HardLink(first.clone());
        // Between two tries of one name.
        if link.target() == path {
            return Ok(false);
        }
        self.add(path, stat, link, Vec::new())?;
        Ok(true)
    }

    fn file(&mut self, file: &File, stat: &Stat, path: &[u8]) -> Result<()> {
        let at = |error: io::Error| Error::file(path, error);
        let xattrs = self.xattrs(file.as_fd(), path)?;
        // Its size says nothing about its contents.
        if is_one_of(file, &UNSIZED_FILESYSTEMS) {
            let mut contents = Vec::new();
            let mut reader = file.take(UNSIZED + 1);
            reader.read_to_end(&mut contents).map_err(at)?;
            if contents.len() as u64 > UNSIZED {
                return Err(Error::file(path, Errno::FBIG));
            }
            let member = self.member(path, stat, Kind::file(contents.len() as u64), xattrs);
            return self.writer.add_file(&member, |offset, piece| {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                let bytes = contents.get(from..).unwrap_or_default();
                piece.copy_from_slice(bytes.get(..piece.len()).unwrap_or_default());
                Ok(())
            });
        }
        // The file's size may still change; the size in the archive can't.
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let segments = segments(file, size).map_err(|errno| at(errno.into()))?;
        let kind = Kind::File {
            size,
            segments: Some(segments),
        };
        let member = self.member(path, stat, kind, xattrs);
        self.writer.add_file(&member, |offset, piece| {
            fill(file, offset, piece).map_err(at)
        })
    }

    fn xattrs(&self, file: BorrowedFd<'_>, path: &[u8]) -> Result<xattr::Xattrs> {
        xattr::read(file, self.packing.xattrs).map_err(|errno| Error::file(path, errno))
    }

    fn add(&mut self, path: &[u8], stat: &Stat, kind: Kind, xattrs: xattr::Xattrs) -> Result<()> {
        let member = self.member(path, stat, kind, xattrs);
        Ok(self.writer.add(&member)?)
    }

    fn member(&self, path: &[u8], stat: &Stat, kind: Kind, xattrs: xattr::Xattrs) -> Member {
        let (uid, gid) = if self.packing.owners {
            (stat.st_uid, stat.st_gid)
        } else {
            (0, 0)
        };
        Member {
            path: path.to_vec(),
            kind,
            attributes: Attributes {
                mode: (stat.st_mode & 0o7777) as u16,
                uid,
                gid,
                mtime: Timestamp {
                    seconds: stat.st_mtime,
                    nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
                },
                xattrs,
            },
        }
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn is_special(kind: FileType) -> bool {
    !matches!(
        kind,
        FileType::RegularFile | FileType::Directory | FileType::Symlink
    )
}

/// Returns the names in a directory, in reverse order.
///
/// # Errors
/// The system's.
pub fn names(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort_unstable_by(|one, other| other.cmp(one));
    Ok(names)
}

/// Returns whether a file is on one of these filesystems.
fn is_one_of(file: impl AsFd, filesystems: &[u32]) -> bool {
    fstatfs(file).is_ok_and(|filesystem| filesystems.contains(&(filesystem.f_type as u32)))
}

/// Returns the parts of a file that are not holes.
fn segments(file: &File, size: u64) -> Result<Vec<Segment>, Errno> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start.clamp(at, size),
            // A hole to the end.
            Err(Errno::NXIO) => break,
            // The filesystem knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno),
        };
        let end = match seek(file, SeekFrom::Hole(start)) {
            Ok(end) if end > start && segments.len() + 1 < SEGMENTS => end.min(size),
            _ => size,
        };
        if start < end {
            segments.push(Segment {
                offset: start,
                length: end - start,
            });
        }
        at = end;
    }
    Ok(segments)
}

/// Reads from a file; zeros after its end.
fn fill(file: &File, offset: u64, piece: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = piece.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => {
                rest.fill(0);
                return Ok(());
            }
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
