//! One more channel to a mounted FUSE filesystem. It is here since it takes an ioctl, and `unsafe` is only in
//! this crate.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};

/// `FUSE_DEV_IOC_CLONE` (`linux/fuse.h`): `_IOR(229, 0, uint32_t)`.
const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;

/// Opens a channel of its own to the filesystem of an open `/dev/fuse`: requests that are answered
/// through it wait in a list of its own.
///
/// # Errors
/// The system's; also if this user may not open `/dev/fuse`, which a helper has opened.
pub fn clone_fuse_channel(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let channel = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let number: u32 = device.as_raw_fd().try_into().map_err(io::Error::other)?;
    // SAFETY: the kernel reads a number of 32 bits, which lives until the call returns.
    let done = unsafe { libc::ioctl(channel.as_raw_fd(), CLONE, &raw const number) };
    if done == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(channel)
}
