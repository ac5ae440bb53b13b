//! Describes files and lists directories.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use micabox_file::{FileKind, Timestamp};
use micabox_tree::names;
use micabox_wire::files::{FileEntry, FileReply, FileStat};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, StatxTimestamp, openat, readlinkat, statx};
use rustix::io::Errno;

use super::failed::Failed;

/// Describes a file: what has a name in a directory, or with `EMPTY_PATH` the open file itself.
pub fn stat(file: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> Result<FileStat, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = statx(file, name, flags | AtFlags::SYMLINK_NOFOLLOW, wanted)?;
    let time = |time: StatxTimestamp| Timestamp {
        seconds: time.tv_sec,
        nanos: time.tv_nsec,
    };
    let created = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    Ok(FileStat {
        kind: FileKind::from_mode(found.stx_mode).unwrap_or(FileKind::File),
        mode: found.stx_mode & 0o7777,
        uid: found.stx_uid,
        gid: found.stx_gid,
        size: found.stx_size,
        allocated: found.stx_blocks.saturating_mul(512),
        links: found.stx_nlink,
        inode: found.stx_ino,
        device: (found.stx_rdev_major, found.stx_rdev_minor),
        accessed: time(found.stx_atime),
        modified: time(found.stx_mtime),
        changed: time(found.stx_ctime),
        created: created.then(|| time(found.stx_btime)),
    })
}

/// Calls `each` for all files in a directory, down to `depth` levels.
pub fn list(
    directory: OwnedFd,
    depth: u32,
    mut each: impl FnMut(FileReply) -> Result<(), Failed>,
) -> Result<(), Failed> {
    if depth == 0 {
        return Ok(());
    }
    let first = names(&directory)?;
    let mut path = Vec::new();
    // Open directories, the names still to come in them, and the lengths of their paths.
    let mut stack = Vec::from([(directory, first, 0)]);
    while let Some((directory, names, length)) = stack.last_mut() {
        path.truncate(*length);
        let Some(name) = names.pop() else {
            stack.pop();
            continue;
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        let at = |errno| Failed::at(&path, errno);
        let stat = match stat(directory.as_fd(), &name, AtFlags::empty()) {
            // Removed meanwhile.
            Err(Errno::NOENT) => continue,
            stat => stat.map_err(at)?,
        };
        let target = match stat.kind {
            FileKind::Symlink => readlinkat(&*directory, &*name, Vec::new())
                .map(|target| target.into_bytes())
                .unwrap_or_default(),
            _ => Vec::new(),
        };
        let path = &mut path;
        each(FileReply::Entry(FileEntry {
            path: path.clone(),
            stat,
            target,
        }))?;
        if stat.kind == FileKind::Directory && stack.len() < depth as usize {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Some((directory, ..)) = stack.last() else {
                continue;
            };
            match openat(directory, &*name, flags, Mode::empty()) {
                Ok(below) => {
                    let names =
                        micabox_tree::names(&below).map_err(|errno| Failed::at(path, errno))?;
                    stack.push((below, names, path.len()));
                }
                // Removed, or something else by now.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(Failed::at(path, errno)),
            }
        }
    }
    Ok(())
}
