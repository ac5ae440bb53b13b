//! The layer with the changes of a tree that the kernel serves, and the process that keeps it.
//!
//! The layer is in a filesystem in memory that is mounted nowhere, or in a folder of the user's. The process
//! has it open, for `diff` and `commit`, and its lock. It ends when the tree is unmounted: it polls the
//! kernel's table of mounts for changes.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use micabox_holders::{own_process, receive, send};
use micabox_jail::Kind;
use micabox_state::ProcessId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, fchmod, fchown, fgetxattr,
    flistxattr, fsetxattr, fstat, futimens, mkdirat, renameat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::kernel::directory;
use super::{CONTROL, MountRecord, process, table};

/// The kind of worker that keeps the layer.
pub const KIND: Kind = Kind::new(NAME, work);

const NAME: &str = "mounted-layer";

/// overlayfs's own attributes.
const OVERLAYS: &[u8] = b"trusted.overlay.";

/// Longest value of an extended attribute, and longest list (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const LONGEST: usize = 64 << 10;

/// What the process gets, with the lock, its socket and the folder.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    place: PathBuf,
    device: Option<(u32, u32)>,
    directory: PathBuf,
}

/// Returns overlayfs's two directories in a folder. A new layer begins with the attributes of the root that
/// it is over, since the tree's root is the layer's.
pub(super) fn prepare(folder: &File, lower: &OwnedFd) -> Result<(OwnedFd, OwnedFd), Errno> {
    const BEGUN: &str = "upper.new";
    let mode = Mode::RWXU;
    let upper = match directory(folder, "upper") {
        Err(Errno::NOENT) => {
            // Of one that was cut off.
            match unlinkat(folder, BEGUN, AtFlags::REMOVEDIR) {
                Err(error) if error != Errno::NOENT => return Err(error),
                _ => {}
            }
            mkdirat(folder, BEGUN, mode)?;
            let upper = directory(folder, BEGUN)?;
            take_attributes(&upper, lower)?;
            renameat(folder, BEGUN, folder, "upper")?;
            upper
        }
        upper => upper?,
    };
    match mkdirat(folder, "work", mode) {
        Err(error) if error != Errno::EXIST => return Err(error),
        _ => {}
    }
    Ok((upper, directory(folder, "work")?))
}

fn take_attributes(to: &OwnedFd, from: &OwnedFd) -> Result<(), Errno> {
    let stat = fstat(from)?;
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    fchown(to, Some(uid), Some(gid))?;
    fchmod(to, Mode::from_raw_mode(stat.st_mode))?;
    let mut names = vec![0; LONGEST];
    let length = flistxattr(from, names.as_mut_slice())?;
    let names = names.get(..length).unwrap_or_default();
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        if name.to_bytes().starts_with(OVERLAYS) {
            continue;
        }
        let mut value = vec![0; LONGEST];
        let length = fgetxattr(from, name, value.as_mut_slice())?;
        let value = value.get(..length).unwrap_or_default();
        fsetxattr(to, name, value, XattrFlags::empty())?;
    }
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.cast_signed(),
    };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    futimens(to, &times)
}

/// Starts the process for a tree that is mounted. It holds the lock from then on.
pub(super) fn keep(
    record: &MountRecord,
    directory: &Path,
    lock: &File,
    listener: &File,
    folder: &File,
) -> io::Result<Result<ProcessId, String>> {
    let job = Job {
        place: record.place.clone(),
        device: record.device,
        directory: directory.to_owned(),
    };
    process::start(NAME, &job, [lock, listener, folder])
}

/// Returns the folder of a tree from the process that keeps it.
pub(super) fn ask(directory: &Path) -> io::Result<File> {
    let stream = micabox_owner::socket::connect(directory, CONTROL.as_ref())?;
    let ((), files) = receive::<()>(&stream)?;
    let folder = files.into_iter().next();
    Ok(folder.ok_or(io::ErrorKind::UnexpectedEof)?.into())
}

fn work(_: RawFd) -> i32 {
    let ran = run();
    own_process::end();
    i32::from(ran.is_err())
}

fn run() -> io::Result<()> {
    let (connection, job, files) = process::receive_job::<Job>()?;
    let [_lock, listener, folder] =
        <[OwnedFd; 3]>::try_from(files).map_err(|_| io::ErrorKind::InvalidData)?;
    let (listener, folder) = (UnixListener::from(listener), File::from(folder));
    // Opened before the table is read: poll(2) reports changes from now on.
    let changes = File::open("/proc/self/mountinfo")?;
    send(&connection, &Ok::<(), String>(()), [])?;
    drop(connection);
    while table::has(&job.place, job.device)? {
        let mut events = [
            PollFd::from_borrowed_fd(changes.as_fd(), PollFlags::PRI),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        match poll(&mut events, None) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        if events[1].revents().contains(PollFlags::IN) {
            let (client, _) = listener.accept()?;
            // The client may have gone.
            let _ = send(&client, &(), [&folder]);
        }
    }
    // The process that unmounts takes the record's end for that of this one, and may use the folder then.
    drop((listener, folder));
    let _ = fs::remove_dir_all(&job.directory);
    Ok(())
}
