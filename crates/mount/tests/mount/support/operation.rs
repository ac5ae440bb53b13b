//! Operations on a filesystem, and what they answer.

use std::os::fd::OwnedFd;

use proptest::prelude::*;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Uid, XattrFlags,
    chownat, copy_file_range, fallocate, fsync, ftruncate, getxattr, linkat, listxattr, mkdirat,
    mknodat, openat, readlinkat, removexattr, renameat_with, seek, setxattr, statat, symlinkat,
    unlinkat,
};
use rustix::io::{Errno, pread, pwrite};

/// A path of the few that there are, so that they meet.
pub type Path = &'static str;

const PATHS: [Path; 12] = [
    "a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "d/e/f", "g", "g/a", "g/d",
];

const XATTRS: [&str; 3] = ["user.one", "user.two", "trusted.overlay.opaque"];

#[derive(Clone, Debug)]
pub enum Operation {
    Create(Path, u32),
    Directory(Path, u32),
    Node(Path, bool),
    Symlink(Path, Path),
    Link(Path, Path),
    Unnamed(Path, Path),
    Unlink(Path),
    RemoveDirectory(Path),
    Rename(Path, Path, u32),
    Write(Path, u64, usize, u8),
    Append(Path, usize),
    Read(Path, u64, usize),
    Truncate(Path, u64),
    Allocate(Path, u32, u64, u64),
    Seek(Path, u64, bool),
    Copy(Path, u64, Path, u64, usize),
    Chmod(Path, u32),
    Chown(Path, u32, u32),
    SetXattr(Path, usize, usize, u32),
    RemoveXattr(Path, usize),
    Xattrs(Path),
    SetList(Path, bool, u16),
    Stat(Path),
    /// Writes to a file that has lost its name.
    WriteUnlinked(Path, usize),
}

impl Operation {
    /// Returns whether it gives a file pages that it does not write.
    pub fn allocates(&self) -> bool {
        matches!(self, Self::Allocate(_, 0 | 1, ..))
    }
}

fn path() -> impl Strategy<Value = Path> {
    prop::sample::select(&PATHS[..])
}

/// Places in a file: near the boundaries of pages and chunks, and anywhere.
fn offset() -> impl Strategy<Value = u64> {
    let edges = [
        0,
        1,
        4095,
        4096,
        4097,
        65535,
        65536,
        131_072,
        1 << 20,
        (1 << 20) + 1,
        3 << 20,
    ];
    prop_oneof![prop::sample::select(edges.to_vec()), 0_u64..200_000]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![0_usize..100, Just(4096), Just(4107), 0_usize..150_000]
}

fn mode() -> impl Strategy<Value = u32> {
    0_u32..0o10000
}

pub fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    prop_oneof![
        4 => (path(), mode()).prop_map(|(p, m)| Create(p, m)),
        4 => (path(), mode()).prop_map(|(p, m)| Directory(p, m)),
        1 => (path(), any::<bool>()).prop_map(|(p, w)| Node(p, w)),
        1 => (path(), path()).prop_map(|(p, t)| Symlink(p, t)),
        2 => (path(), path()).prop_map(|(p, q)| Link(p, q)),
        1 => (path(), path()).prop_map(|(p, q)| Unnamed(p, q)),
        2 => path().prop_map(Unlink),
        1 => path().prop_map(RemoveDirectory),
        5 => (path(), path(), prop_oneof![3 => Just(0_u32), 1 => Just(1), 2 => Just(2), 1 => Just(4)])
            .prop_map(|(p, q, f)| Rename(p, q, f)),
        6 => (path(), offset(), length(), any::<u8>()).prop_map(|(p, o, l, b)| Write(p, o, l, b)),
        2 => (path(), length()).prop_map(|(p, l)| Append(p, l)),
        4 => (path(), offset(), length()).prop_map(|(p, o, l)| Read(p, o, l)),
        3 => (path(), offset()).prop_map(|(p, o)| Truncate(p, o)),
        3 => (path(), prop::sample::select(vec![0_u32, 1, 3]), offset(), offset())
            .prop_map(|(p, m, o, l)| Allocate(p, m, o, l)),
        3 => (path(), offset(), any::<bool>()).prop_map(|(p, o, d)| Seek(p, o, d)),
        1 => (path(), offset(), path(), offset(), length())
            .prop_map(|(p, o, q, r, l)| Copy(p, o, q, r, l)),
        2 => (path(), mode()).prop_map(|(p, m)| Chmod(p, m)),
        2 => (path(), 0_u32..3, 0_u32..3).prop_map(|(p, u, g)| Chown(p, u, g)),
        2 => (path(), 0_usize..3, 0_usize..3000, 0_u32..3).prop_map(|(p, n, l, f)| SetXattr(p, n, l, f)),
        1 => (path(), 0_usize..3).prop_map(|(p, n)| RemoveXattr(p, n)),
        1 => path().prop_map(Xattrs),
        2 => (path(), any::<bool>(), 0_u16..8).prop_map(|(p, d, m)| SetList(p, d, m)),
        3 => path().prop_map(Stat),
        1 => (path(), length()).prop_map(|(p, l)| WriteUnlinked(p, l)),
    ]
}

/// What an operation answers: a number, bytes, or an error.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Number(u64),
    Bytes(Vec<u8>),
    Attributes(Attributes),
    Error(Errno),
}

/// What stat(2) says that filesystems must agree on.
#[derive(Debug, PartialEq, Eq)]
pub struct Attributes {
    mode: u32,
    links: u64,
    owner: (u32, u32),
    device: u64,
    /// Of anything but a directory.
    size: Option<(i64, i64)>,
}

pub fn attributes(root: &OwnedFd, path: &str) -> Result<Attributes, Errno> {
    let stat = statat(root, path, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(Attributes {
        mode: stat.st_mode,
        links: stat.st_nlink,
        owner: (stat.st_uid, stat.st_gid),
        device: stat.st_rdev,
        size: is_file.then_some((stat.st_size, stat.st_blocks)),
    })
}

/// Applies an operation below a directory.
pub fn apply(root: &OwnedFd, operation: &Operation) -> Answer {
    match try_apply(root, operation) {
        Ok(answer) => answer,
        Err(error) => Answer::Error(error),
    }
}

fn open(root: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    // A whiteout is a device without a driver.
    openat(root, path, flags, Mode::empty())
}

fn bytes(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

fn try_apply(root: &OwnedFd, operation: &Operation) -> Result<Answer, Errno> {
    use Operation::*;
    let proc = |file: &OwnedFd| format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    match *operation {
        Create(path, mode) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            openat(root, path, flags, Mode::from_raw_mode(mode))?;
        }
        Directory(path, mode) => mkdirat(root, path, Mode::from_raw_mode(mode & 0o3777))?,
        Node(path, true) => {
            mknodat(root, path, FileType::CharacterDevice, Mode::empty(), 0)?;
        }
        Node(path, false) => mknodat(root, path, FileType::Fifo, Mode::RUSR, 0)?,
        Symlink(path, target) => symlinkat(target, root, path)?,
        Link(path, new) => linkat(root, path, root, new, AtFlags::empty())?,
        Unnamed(directory, new) => {
            let flags = OFlags::TMPFILE | OFlags::RDWR;
            let file = openat(root, directory, flags, Mode::RUSR | Mode::WUSR)?;
            pwrite(&file, b"unnamed", 0)?;
            linkat(
                rustix::fs::CWD,
                proc(&file),
                root,
                new,
                AtFlags::SYMLINK_FOLLOW,
            )?;
        }
        Unlink(path) => unlinkat(root, path, AtFlags::empty())?,
        RemoveDirectory(path) => unlinkat(root, path, AtFlags::REMOVEDIR)?,
        Rename(path, new, flags) => {
            renameat_with(root, path, root, new, RenameFlags::from_bits_retain(flags))?;
        }
        Write(path, offset, length, seed) => {
            let file = open(root, path, OFlags::WRONLY)?;
            let written = pwrite(&file, &bytes(length, seed), offset)?;
            fsync(&file)?;
            return Ok(Answer::Number(written as u64));
        }
        Append(path, length) => {
            let file = open(root, path, OFlags::WRONLY | OFlags::APPEND)?;
            return Ok(Answer::Number(
                rustix::io::write(&file, &bytes(length, 7))? as u64
            ));
        }
        Read(path, offset, length) => {
            let file = open(root, path, OFlags::RDONLY)?;
            let mut buffer = vec![0; length];
            let count = pread(&file, &mut buffer[..], offset)?;
            buffer.truncate(count);
            return Ok(Answer::Bytes(buffer));
        }
        Truncate(path, size) => ftruncate(open(root, path, OFlags::WRONLY)?, size)?,
        Allocate(path, mode, offset, length) => {
            let flags = FallocateFlags::from_bits_retain(mode);
            fallocate(open(root, path, OFlags::WRONLY)?, flags, offset, length)?;
        }
        Seek(path, offset, data) => {
            let file = open(root, path, OFlags::RDONLY)?;
            // A directory's places are each filesystem's own.
            if attributes(root, path)?.size.is_none() {
                return Ok(Answer::Done);
            }
            let from = if data {
                SeekFrom::Data(offset)
            } else {
                SeekFrom::Hole(offset)
            };
            return Ok(Answer::Number(seek(&file, from)?));
        }
        Copy(path, offset, to, to_offset, length) => {
            let (from, to) = (
                open(root, path, OFlags::RDONLY)?,
                open(root, to, OFlags::WRONLY)?,
            );
            let (mut offset, mut to_offset) = (offset, to_offset);
            let copied =
                copy_file_range(&from, Some(&mut offset), &to, Some(&mut to_offset), length)?;
            return Ok(Answer::Number(copied as u64));
        }
        Chmod(path, mode) => {
            let file = openat(root, path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
            rustix::fs::chmod(proc(&file), Mode::from_raw_mode(mode))?;
        }
        Chown(path, uid, gid) => {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            chownat(root, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        SetXattr(path, name, length, flags) => {
            let file = open(root, path, OFlags::RDONLY)?;
            let flags = XattrFlags::from_bits_retain(flags);
            setxattr(proc(&file), XATTRS[name], &bytes(length, 3), flags)?;
        }
        RemoveXattr(path, name) => {
            removexattr(proc(&open(root, path, OFlags::RDONLY)?), XATTRS[name])?;
        }
        Xattrs(path) => {
            return Ok(Answer::Bytes(xattrs(&open(root, path, OFlags::RDONLY)?)?));
        }
        SetList(path, is_default, mask) => {
            let name = if is_default {
                "system.posix_acl_default"
            } else {
                "system.posix_acl_access"
            };
            let file = open(root, path, OFlags::RDONLY)?;
            setxattr(proc(&file), name, &list(mask), XattrFlags::empty())?;
        }
        Stat(path) => return Ok(Answer::Attributes(attributes(root, path)?)),
        WriteUnlinked(path, length) => {
            let file = open(root, path, OFlags::RDWR)?;
            unlinkat(root, path, AtFlags::empty())?;
            pwrite(&file, &bytes(length, 9), 100)?;
            let mut buffer = vec![0; length + 200];
            let count = pread(&file, &mut buffer[..], 0)?;
            buffer.truncate(count);
            return Ok(Answer::Bytes(buffer));
        }
    }
    Ok(Answer::Done)
}

/// Returns all attributes, names and values, in order.
pub fn xattrs(file: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    let mut names = vec![0; 4096];
    let length = listxattr(&path, &mut names[..])?;
    names.truncate(length);
    let mut names: Vec<&[u8]> = names
        .split(|&byte| byte == 0)
        .filter(|n| !n.is_empty())
        .collect();
    names.sort_unstable();
    let mut all = Vec::new();
    for name in names {
        let mut value = vec![0; 4096];
        let length = getxattr(&path, name, &mut value[..])?;
        all.extend_from_slice(name);
        all.push(0);
        all.extend_from_slice(&value[..length]);
    }
    Ok(all)
}

/// Returns an access control list with a user of its own and this mask.
fn list(mask: u16) -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [
        (1, 6, u32::MAX),
        (2, 7, 1000),
        (4, 5, u32::MAX),
        (0x10, mask, u32::MAX),
        (0x20, 4, u32::MAX),
    ];
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (kind, permissions, id) in entries {
        value.extend(kind.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Returns a symbolic link's target.
pub fn target(root: &OwnedFd, path: &str) -> Option<Vec<u8>> {
    readlinkat(root, path, Vec::new())
        .ok()
        .map(|target| target.into_bytes())
}
