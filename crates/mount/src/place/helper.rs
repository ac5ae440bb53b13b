//! `fusermount3`, which mounts for users who are not root (fusermount3(1)). It hands over the open
//! `/dev/fuse` through a socket whose number is in its environment.

use std::env;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

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
pub(super) fn mount(path: &Path) -> Result<OwnedFd, Error> {
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
    let output = Command::new(PROGRAM)
        .args([
            "-o",
            "fsname=mica,subtype=memfs,default_permissions,nosuid,nodev",
            "--",
        ])
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
    receive(&ours).ok_or_else(|| failed(format!("{PROGRAM} handed over no device")))
}

/// Receives an open file.
fn receive(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        flags,
    )
    .ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    })
}

/// Unmounts, also what is in use.
pub(super) fn unmount(path: &Path) {
    // It may be unmounted already, which is no error.
    let _ = Command::new(PROGRAM)
        .args(["-u", "-z", "-q", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
}
