//! `fusermount3`, which mounts for users who are not root (fusermount3(1)). It hands over the open
//! `/dev/fuse` through a socket whose number is in its environment.

use std::env;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::Shown;
use crate::Error;

const PROGRAM: &str = "fusermount3";

/// Returns where the helper is.
pub(super) fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|directory| directory.join(PROGRAM))
        .find(|path| path.is_file())
}

/// Mounts; returns the open device.
pub(super) fn mount(path: &Path, shown: Shown, is_for_one_user: bool) -> Result<OwnedFd, Error> {
    let failed = |message: String| Error::Helper {
        path: path.to_owned(),
        message,
    };
    let said = |error: std::io::Error| failed(format!("{PROGRAM}: {error}"));
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| said(error.into()))?;
    fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| said(error.into()))?;
    let subtype = shown.subtype();
    let mut options = format!("fsname=mica,subtype={subtype},nosuid,nodev");
    if shown == (Shown::Tree { is_read_only: true }) {
        options.push_str(",ro");
    }
    if !is_for_one_user {
        options.push_str(",default_permissions");
    }
    if may_allow_others() {
        options.push_str(",allow_other");
    }
    let output = Command::new(PROGRAM)
        .args(["-o", &options, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(said)?;
    drop(theirs);
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(failed(text.trim().to_owned()));
    }
    // A byte comes with it.
    let received = micabox_socket::receive(&ours, &mut [0], 1);
    let device = received
        .ok()
        .and_then(|received| received.descriptors.into_iter().next());
    device.ok_or_else(|| failed(format!("{PROGRAM} handed over no device")))
}

/// Returns whether root lets users show their filesystems to others (fuse.conf(5)).
pub(super) fn may_allow_others() -> bool {
    let text = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    text.lines().any(|line| line.trim() == "user_allow_other")
}

/// Unmounts; with `is_forced`, also what is in use. The helper's errors are text only: all become `EBUSY`.
pub(super) fn unmount(path: &Path, is_forced: bool) -> Result<(), Errno> {
    let mut command = Command::new(PROGRAM);
    command.args(["-u", "-q"]);
    if is_forced {
        command.arg("-z");
    }
    let status = command
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Errno::BUSY),
        Err(_) => Err(Errno::NOENT),
    }
}
