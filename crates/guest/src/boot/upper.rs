//! The overlay's writable layer: a filesystem with two directories, one for the changes and `work` for
//! overlayfs. The former is `root` on disks of ours, and in a folder of the host `upper`, as people
//! call it.

use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use micabox_wire::{BootFailed, Upper};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timestamps, Uid, XattrFlags};
use rustix::mount::{MountAttrFlags, OpenTreeFlags};

use super::device;
use crate::mount::{self, Filesystem, attach};
use crate::step::{Step, failed};

/// Where the agent has the upper's filesystem mounted.
pub const UPPER: &str = "/upper";

/// The directory that overlayfs works in.
pub const WORK: &str = "/upper/work";

/// Where the agent has the filesystem of patches mounted.
pub const PATCHES: &str = "/patches";

/// Mounts the filesystem of patches read-only, and returns the path of its layer.
pub fn mount_patches(serial: &str) -> Result<String, BootFailed> {
    let path = format!("/dev/{}", device::disk(serial)?);
    fs::create_dir_all(PATCHES).step("make the directory", PATCHES)?;
    Filesystem::new("ext4")
        .and_then(|ext4| {
            ext4.set("source", &path)?;
            ext4.set_flag("ro")?;
            ext4.mount(MountAttrFlags::MOUNT_ATTR_RDONLY)
        })
        .and_then(|mount| Ok(attach(&mount, PATCHES)?))
        .step("mount the patches", format!("ext4 ({path})"))?;
    Ok(format!("{PATCHES}/root"))
}

/// Mounts the upper's filesystem, and returns the directory with overlayfs's upper layer. `top` is the
/// topmost layer: the merged root directory is the upper's, so that starts with the attributes of the
/// image's.
pub fn prepare(upper: &Upper, top: &str) -> Result<String, BootFailed> {
    let step = "mount the upper layer";
    fs::create_dir_all(UPPER).step("make the directory", UPPER)?;
    let (filesystem, target, layer) = match upper {
        Upper::Tmpfs { size_bytes, .. } => (tmpfs(*size_bytes), "tmpfs".to_owned(), "root"),
        Upper::Disk { serial } => {
            let path = format!("/dev/{}", device::disk(serial)?);
            (ext4(&path), format!("ext4 ({path})"), "root")
        }
        Upper::Share { tag } => (share(tag), "the folder of the host".to_owned(), "upper"),
        Upper::InPlace { .. } => return Err(failed(step, UPPER, 0, "changes are made in place")),
    };
    filesystem
        .and_then(|filesystem| filesystem.mount(MountAttrFlags::empty()))
        .and_then(|mount| Ok(attach(&mount, UPPER)?))
        .step(step, target)?;
    if !Path::new(WORK).is_dir() {
        fs::create_dir(WORK).step(step, WORK)?;
    }
    let root = format!("{UPPER}/{layer}");
    if !Path::new(&root).is_dir() {
        // Created under another name until it is complete: the machine may be cut off at any
        // moment, and an existing directory is not checked again.
        let unfinished = format!("{root}.new");
        fs::create_dir_all(&unfinished).step(step, &unfinished)?;
        copy_attributes(top, &unfinished).step("copy the attributes of the root directory", top)?;
        fs::rename(&unfinished, &root).step(step, &root)?;
    }
    Ok(root)
}

/// Mounts a disk that is the root itself at [`UPPER`], which the agent flushes in the end, and
/// returns a second, detached mount of it for the sandbox.
pub fn mount_in_place(serial: &str) -> Result<OwnedFd, BootFailed> {
    let path = format!("/dev/{}", device::disk(serial)?);
    fs::create_dir_all(UPPER).step("make the directory", UPPER)?;
    Filesystem::new("ext4")
        .and_then(|ext4| {
            ext4.set("source", &path)?;
            ext4.set("errors", "remount-ro")?;
            ext4.mount(MountAttrFlags::empty())
        })
        .and_then(|mount| Ok(attach(&mount, UPPER)?))
        .step("mount the root disk", format!("ext4 ({path})"))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(CWD, UPPER, flags).step("mount the root disk", UPPER)
}

fn tmpfs(size_bytes: Option<u64>) -> Result<Filesystem, mount::Error> {
    let tmpfs = Filesystem::new("tmpfs")?;
    if let Some(bytes) = size_bytes {
        tmpfs.set("size", bytes.to_string())?;
    }
    tmpfs.set("mode", "0700")?;
    Ok(tmpfs)
}

fn share(tag: &str) -> Result<Filesystem, mount::Error> {
    let share = Filesystem::new("virtiofs")?;
    share.set("source", tag)?;
    Ok(share)
}

/// Returns the filesystem of a disk that is written to.
pub fn ext4(path: &str) -> Result<Filesystem, mount::Error> {
    let ext4 = Filesystem::new("ext4")?;
    ext4.set("source", path)?;
    // The host's file is sparse: deleted files return their space, and inode tables need not be
    // filled with zeros, since the file's holes are zeros.
    ext4.set_flag("discard")?;
    ext4.set_flag("noinit_itable")?;
    // After an error, writes are refused rather than corrupted.
    ext4.set("errors", "remount-ro")?;
    Ok(ext4)
}

/// Gives the directory `to` the owner, mode, extended attributes and mtime of `from`.
fn copy_attributes(from: &str, to: &str) -> rustix::io::Result<()> {
    let stat = rustix::fs::stat(from)?;
    rustix::fs::chown(
        to,
        Some(Uid::from_raw(stat.st_uid)),
        Some(Gid::from_raw(stat.st_gid)),
    )?;
    rustix::fs::chmod(to, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    let mut names = vec![0; 64 * 1024];
    let length = rustix::fs::listxattr(from, &mut names)?;
    let names = names.get(..length).unwrap_or_default();
    for name in names
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        // Overlayfs's own attributes apply only to the lower that they are in.
        if name.starts_with(b"trusted.overlay.") {
            continue;
        }
        let name = CString::new(name).unwrap_or_default();
        let mut value = vec![0; 64 * 1024];
        let length = rustix::fs::getxattr(from, &name, &mut value)?;
        let value = value.get(..length).unwrap_or_default();
        rustix::fs::setxattr(to, &name, value, XattrFlags::empty())?;
    }
    // Last, as the other calls change the mtime.
    let times = Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: stat.st_atime as _,
            tv_nsec: stat.st_atime_nsec as _,
        },
        last_modification: rustix::fs::Timespec {
            tv_sec: stat.st_mtime as _,
            tv_nsec: stat.st_mtime_nsec as _,
        },
    };
    rustix::fs::utimensat(CWD, to, &times, AtFlags::empty())
}
