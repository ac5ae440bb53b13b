//! Reads inodes and directories from the lower, and checks what is read.

use std::collections::HashSet;
use std::sync::Arc;

use micabox_file::{FileKind, Timestamp};
use rustix::io::Errno;

use crate::Result;
use crate::contents::SIZE_MAX;
use crate::directory::{Child, Directory, check};
use crate::inode::{Inode, State, TARGET_MAX};
use crate::lower::Lower;
use crate::xattr::set;
use micabox_file::Stat;

/// Adds what a directory has in the lower. Names that no directory can have, two that are the same, and
/// two of one directory, are damage.
pub(crate) fn add_lower(lower: &dyn Lower, directory: u64, entries: &mut Directory) -> Result<()> {
    let listed = lower.list(directory)?;
    let mut directories = HashSet::new();
    let mut found = Directory::new(true);
    for (name, file, kind) in listed {
        let is_again = kind == FileKind::Directory && !directories.insert(file);
        if check(&name).is_err() || found.get(&name).is_some() || is_again {
            return Err(Errno::IO);
        }
        // Only a whiteout has this number, and hides nothing in the lowest layer.
        if kind == FileKind::CharDevice && lower.stat(file)?.device == (0, 0) {
            continue;
        }
        found.add(name.into(), Child::Below(file, kind));
    }
    *entries = found;
    Ok(())
}

/// Reads a file of the lower.
pub(crate) fn read(
    lower: &Arc<dyn Lower>,
    file: u64,
    number: u64,
    parent: u64,
    kind: FileKind,
) -> Result<Inode> {
    let stat = lower.stat(file)?;
    if stat.kind != kind || stat.number != file || stat.size > SIZE_MAX {
        return Err(Errno::IO);
    }
    let target = match kind {
        FileKind::Symlink => lower.target(file)?,
        _ => Vec::new(),
    };
    let is_target = (1..=TARGET_MAX).contains(&target.len()) && !target.contains(&0);
    if kind == FileKind::Symlink && !is_target {
        return Err(Errno::IO);
    }
    let xattrs = lower.xattrs(file)?;
    if !xattrs
        .iter()
        .all(|(name, value)| set::is_valid(name, value))
    {
        return Err(Errno::IO);
    }
    let xattrs = xattrs
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()));
    let time = |time: Timestamp| Timestamp {
        nanos: time.nanos.min(999_999_999),
        ..time
    };
    let fewest = if kind == FileKind::Directory { 2 } else { 1 };
    let state = State {
        mode: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        links: stat.links.max(fewest),
        holds: 0,
        taken: 0,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        xattrs: xattrs.collect(),
    };
    let stat = Stat {
        born: time(stat.born),
        ..stat
    };
    Ok(Inode::over(number, lower, &stat, target, state, parent))
}
