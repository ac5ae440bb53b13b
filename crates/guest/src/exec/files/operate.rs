//! Begins operations: resolves paths, opens files, and does all that needs no streams.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use micabox_file::Timestamp;
use micabox_tree::{Root, Source};
use micabox_wire::files::{Existing, FileReply, FileRequest};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, Uid,
    chownat, fcntl_getfl, fcntl_setfl, fstat, linkat, mkdirat, openat, readlinkat, renameat_with,
    seek, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::failed::Failed;
use super::list;
use super::watch::Watcher;
use super::work::Work;
use crate::errno::last_errno;
use crate::exec::watches::Watching;
use crate::kernel::has_one_user;

/// Opening a FIFO or a device must not wait.
const AT_ONCE: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

/// Begins an operation below `root`.
///
/// # Errors
/// Why it can't begin, or has failed if it needs no streams.
pub fn begin(root: Root, request: FileRequest, watching: Option<Watching>) -> Result<Work, Failed> {
    use FileRequest as Request;
    match request {
        Request::Read {
            path,
            offset,
            length,
        } => return Ok(Work::Read(read(&root, &path, offset)?, length)),
        Request::Write {
            path,
            existing,
            mode,
            parents,
        } => return Ok(Work::Write(write(&root, &path, existing, mode, parents)?)),
        Request::WriteMany {
            existing,
            mode,
            parents,
        } => {
            let open = move |path: &[u8]| write(&root, path, existing, mode, parents);
            return Ok(Work::WriteMany(Box::new(open)));
        }
        Request::Stat { path, follow } => {
            let file = found(&root, &path, follow)?;
            let stat = list::stat(file.as_fd(), b"", AtFlags::EMPTY_PATH)?;
            return Ok(Work::Reply(FileReply::Stat(stat)));
        }
        Request::List { path, depth } => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            return Ok(Work::List(root.open(&path, flags, Mode::empty())?, depth));
        }
        Request::ReadLink { path } => {
            let target = read_link(&root, &path)?;
            return Ok(Work::Reply(FileReply::Target { target }));
        }
        Request::Resolve { path } => {
            let target = resolve(&root, &path)?;
            return Ok(Work::Reply(FileReply::Target { target }));
        }
        Request::Pack { path, follow, name } => {
            let source = Source::open(&root, &path, follow)?;
            return Ok(Work::Pack(source, path, name));
        }
        Request::Watch { path, recursive } => {
            let watching = watching.ok_or(Errno::INVAL)?;
            let watcher = Watcher::new(watching, root, path, recursive)?;
            return Ok(Work::Watch(Box::new(watcher)));
        }
        Request::Unpack { path } => {
            root.made_directory(&path)?;
            return Ok(Work::Unpack(root, path));
        }
        Request::MakeDirectory {
            path,
            mode,
            parents,
        } => make_directory(&root, &path, mode, parents)?,
        Request::Remove { path, recursive } => return remove(&root, &path, recursive),
        Request::Rename { from, to, replace } => rename(&root, &from, &to, replace)?,
        Request::Symlink { target, path } => {
            let (parent, name) = root.parent(&path)?;
            symlinkat(target, parent, name)?;
        }
        Request::HardLink { file, path } => {
            let (from, old) = root.parent(&file)?;
            let (to, new) = root.parent(&path)?;
            linkat(from, old, to, new, AtFlags::empty())?;
        }
        Request::Set {
            path,
            follow,
            mode,
            uid,
            gid,
            accessed,
            modified,
        } => {
            let file = found(&root, &path, follow)?;
            set_owner(&file, uid, gid)?;
            if let Some(mode) = mode {
                set_mode(&file, mode)?;
            }
            set_times(&file, accessed, modified)?;
        }
    }
    Ok(Work::Done)
}

/// Finds a file, without a right to read or write it.
fn found(root: &Root, path: &[u8], follow: bool) -> Result<OwnedFd, Errno> {
    let mut flags = OFlags::PATH;
    flags.set(OFlags::NOFOLLOW, !follow);
    root.open(path, flags, Mode::empty())
}

/// Makes an open file ready for reads and writes that wait. Only files and devices are.
fn ready(file: &OwnedFd) -> Result<(), Errno> {
    match FileType::from_raw_mode(fstat(file)?.st_mode) {
        FileType::Directory => return Err(Errno::ISDIR),
        FileType::RegularFile | FileType::CharacterDevice | FileType::BlockDevice => {}
        _ => return Err(Errno::INVAL),
    }
    fcntl_setfl(file, fcntl_getfl(file)?.difference(OFlags::NONBLOCK))
}

/// Opens a file to read it from `offset` on.
fn read(root: &Root, path: &[u8], offset: u64) -> Result<OwnedFd, Errno> {
    let file = root.open(path, OFlags::RDONLY | AT_ONCE, Mode::empty())?;
    ready(&file)?;
    if offset > 0 {
        seek(&file, SeekFrom::Start(offset))?;
    }
    Ok(file)
}

/// Opens a file to write to it.
fn write(
    root: &Root,
    path: &[u8],
    existing: Existing,
    mode: u16,
    parents: bool,
) -> Result<OwnedFd, Failed> {
    let how = match existing {
        Existing::Truncate => OFlags::TRUNC,
        Existing::Append => OFlags::APPEND,
        Existing::At(_) => OFlags::empty(),
        Existing::Refuse => OFlags::EXCL,
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | AT_ONCE | how;
    let file = match root.open(path, flags, bits(mode)) {
        Err(Errno::NOENT) if parents => root.open(&root.way(path)?, flags, bits(mode))?,
        file => file?,
    };
    ready(&file)?;
    if let Existing::At(offset) = existing {
        seek(&file, SeekFrom::Start(offset))?;
    }
    Ok(file)
}

/// Returns what a symbolic link says.
fn read_link(root: &Root, path: &[u8]) -> Result<Vec<u8>, Errno> {
    let link = found(root, path, false)?;
    match readlinkat(&link, "", Vec::new()) {
        Ok(target) => Ok(target.into_bytes()),
        // The kernel's error for an empty name says that there is no such file.
        Err(Errno::NOENT) => Err(Errno::INVAL),
        Err(errno) => Err(errno),
    }
}

/// Returns a file's path without symbolic links.
fn resolve(root: &Root, path: &[u8]) -> Result<Vec<u8>, Errno> {
    let file = found(root, path, true)?;
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    readlinkat(CWD, link, Vec::new()).map(|target| target.into_bytes())
}

fn rename(root: &Root, from: &[u8], to: &[u8], replace: bool) -> Result<(), Errno> {
    let (from, old) = root.parent(from)?;
    let (to, new) = root.parent(to)?;
    let mut flags = RenameFlags::empty();
    flags.set(RenameFlags::NOREPLACE, !replace);
    renameat_with(from, old, to, new, flags)
}

fn make_directory(root: &Root, path: &[u8], mode: u16, parents: bool) -> Result<(), Errno> {
    if !parents {
        let (parent, name) = root.parent(path).map_err(|errno| match errno {
            // Of `/`, `.` and `..`.
            Errno::BUSY => Errno::EXIST,
            errno => errno,
        })?;
        return mkdirat(parent, name, bits(mode));
    }
    if root.directory(path).is_ok() {
        return Ok(());
    }
    let (parent, name) = root.made_parent(path)?;
    match mkdirat(parent, name, bits(mode)) {
        // Made meanwhile; or a file.
        Err(Errno::EXIST) => root.directory(path).map(drop),
        made => made,
    }
}

/// Removes a file or an empty directory; a directory with everything below it is left to do.
fn remove(root: &Root, path: &[u8], recursive: bool) -> Result<Work, Failed> {
    let (parent, name) = root.parent(path)?;
    match unlinkat(&parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR) if recursive => return Ok(Work::Remove(parent, name.to_vec())),
        Err(Errno::ISDIR) => unlinkat(&parent, name, AtFlags::REMOVEDIR)?,
        removed => removed?,
    }
    Ok(Work::Done)
}

/// Removes a directory with everything below it.
pub fn remove_all(parent: &OwnedFd, name: &[u8]) -> Result<(), Failed> {
    // Directories on the way to what is removed next, with their names and the names in them.
    let mut stack: Vec<(OwnedFd, Vec<u8>, Vec<Vec<u8>>)> = Vec::new();
    let open = |parent: &OwnedFd, name: &[u8]| -> Result<_, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(parent, name, flags, Mode::empty())?;
        let names = micabox_tree::names(&directory)?;
        Ok((directory, name.to_vec(), names))
    };
    stack.push(open(parent, name)?);
    while let Some((directory, _, names)) = stack.last_mut() {
        if let Some(name) = names.pop() {
            let failed = |errno| Failed::at(&name, errno);
            match unlinkat(&*directory, &*name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => match open(directory, &name) {
                    Ok(level) => stack.push(level),
                    // Something else has the name now, or nothing.
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(failed(errno)),
                },
                Err(errno) => return Err(failed(errno)),
            }
            continue;
        }
        let Some((_, name, _)) = stack.pop() else {
            break;
        };
        let above = stack.last().map_or(parent, |(directory, ..)| directory);
        match unlinkat(above, &*name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(Failed::at(&name, errno)),
        }
    }
    Ok(())
}

/// Gives a file that was opened only as a path other owners.
fn set_owner(file: &OwnedFd, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    // -1 would mean that nothing changes.
    if [uid, gid].contains(&Some(u32::MAX)) {
        return Err(Errno::INVAL);
    }
    // Where there is no user but root, all files are root's.
    if (uid.is_some() || gid.is_some()) && !has_one_user() {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        chownat(file, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

/// Sets the times of a file that was opened only as a path.
fn set_times(
    file: &OwnedFd,
    accessed: Option<Timestamp>,
    modified: Option<Timestamp>,
) -> Result<(), Errno> {
    if accessed.is_some() || modified.is_some() {
        let times = Timestamps {
            last_access: time(accessed),
            last_modification: time(modified),
        };
        utimensat(file, "", &times, AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

/// Sets the mode of a file that was opened only as a path.
fn set_mode(file: &OwnedFd, mode: u16) -> Result<(), Errno> {
    let kind = FileType::from_raw_mode(fstat(file)?.st_mode);
    if kind == FileType::Symlink {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: the kernel reads an empty string that outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_fchmodat2,
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::c_uint::from(mode & 0o7777),
            libc::AT_EMPTY_PATH,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn bits(mode: u16) -> Mode {
    Mode::from_raw_mode(u32::from(mode & 0o7777))
}

fn time(time: Option<Timestamp>) -> Timespec {
    match time {
        Some(time) => Timespec {
            tv_sec: time.seconds,
            tv_nsec: time.nanos.min(999_999_999).into(),
        },
        None => Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
    }
}
