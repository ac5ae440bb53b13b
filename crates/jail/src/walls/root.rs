//! An empty or nearly empty root directory.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, mount_remount, unmount,
};
use rustix::process::{chdir, pivot_root};

use super::{Error, View, step};

/// A directory that every Linux system has, to mount the new root on.
pub(crate) const PLACE: &str = "/proc";

/// Replaces the root of this mount namespace by an empty read-only file system. No other file
/// system is left.
pub(super) fn make_empty() -> Result<(), Error> {
    mount_root(c"mode=555,size=4k,nr_inodes=1")?;
    move_there()
}

/// Replaces the root by one that has the paths of `view`, at the same places, and its files at the
/// paths of their descriptors below `/proc/self/fd`. Every mount is read-only; a device behind one
/// can still be written to.
pub(super) fn make_of(view: &View) -> Result<(), Error> {
    mount_root(c"mode=755,size=1m")?;
    fill(view).map_err(step("filling its root"))?;
    move_there()
}

/// Replaces the root by the working directory; read-only if `read_only`. What is mounted below it is there
/// only if `with_mounts`.
pub(super) fn make_of_here(read_only: bool, with_mounts: bool) -> Result<(), Error> {
    keep_mounts()?;
    if with_mounts {
        mount_bind_recursive(".", PLACE).map_err(step("mounting the folder"))?;
    } else {
        // Nor is what will be.
        let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", flags).map_err(step("keeping mounts out"))?;
        mount_bind(".", PLACE)
            .map_err(step("mounting the folder without what is mounted in it"))?;
    }
    chdir(PLACE).map_err(step("entering the folder"))?;
    pivot_root(".", ".").map_err(step("changing the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(step("leaving the old root"))?;
    chdir("/").map_err(step("entering its root"))?;
    let flags = libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    let read_only = if read_only {
        libc::MOUNT_ATTR_RDONLY
    } else {
        0
    };
    set_attributes(Path::new("/"), libc::MOUNT_ATTR_NOSUID | flags | read_only)
        .map_err(step("sealing its root"))
}

const FLAGS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

fn mount_root(options: &std::ffi::CStr) -> Result<(), Error> {
    keep_mounts()?;
    mount("none", PLACE, "tmpfs", FLAGS, options).map_err(step("mounting an empty root"))
}

/// Keeps what is mounted from now on to this namespace.
pub(crate) fn keep_mounts() -> Result<(), Error> {
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
    .map_err(step("keeping mounts to itself"))
}

fn move_there() -> Result<(), Error> {
    chdir(PLACE).map_err(step("entering its empty root"))?;
    // The old root is stacked on the new one, and then detached.
    pivot_root(".", ".").map_err(step("changing the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(step("leaving the old root"))?;
    mount_remount("/", FLAGS | MountFlags::RDONLY, "").map_err(step("sealing its root"))?;
    chdir("/").map_err(step("entering its empty root"))
}

fn fill(view: &View) -> io::Result<()> {
    let inside = |path: &Path| {
        let relative = path.strip_prefix("/").unwrap_or(path);
        Path::new(PLACE).join(relative)
    };
    for path in &view.paths {
        let target = inside(path);
        let Ok(meta) = path.symlink_metadata() else {
            continue; // not on every system
        };
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        if meta.is_symlink() {
            symlink(fs::read_link(path)?, &target)?;
            continue;
        }
        make_point(&target, meta.is_dir())?;
        show(path, &target, libc::MOUNT_ATTR_NODEV)?;
    }
    for (path, descriptor) in &view.files {
        let target = inside(&View::file_path(*descriptor));
        make_point(&target, false)?;
        show(path, &target, libc::MOUNT_ATTR_NODEV)?;
        if !is_same(&target, *descriptor)? {
            let why = format!("{} was replaced meanwhile", path.display());
            return Err(io::Error::other(why));
        }
    }
    for path in &view.devices {
        let target = inside(path);
        make_point(&target, false)?;
        show(path, &target, 0)?;
    }
    Ok(())
}

/// Creates a mount point.
fn make_point(target: &Path, is_directory: bool) -> io::Result<()> {
    if is_directory {
        return fs::create_dir_all(target);
    }
    fs::create_dir_all(target.parent().unwrap_or(target))?;
    File::create(target).map(drop)
}

/// Mounts `path` on `target`, read-only, without set-id programs and with `flags`.
fn show(path: &Path, target: &Path, flags: u64) -> io::Result<()> {
    let failed = |error: rustix::io::Errno| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    };
    mount_bind_recursive(path, target).map_err(failed)?;
    make_read_only(target, flags)
}

/// `struct mount_attr` of `linux/mount.h`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Makes a mount and all mounts below it read-only and nosuid, with more `flags` (`MOUNT_ATTR_*`).
fn make_read_only(target: &Path, flags: u64) -> io::Result<()> {
    let set = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | flags;
    match set_attributes(target, set) {
        // Linux before 5.12: the process's identity and Landlock still prevent writes.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        result => result,
    }
}

/// Sets attributes (`MOUNT_ATTR_*`) of a mount and all mounts below it.
fn set_attributes(target: &Path, set: u64) -> io::Result<()> {
    let path = CString::new(target.as_os_str().as_bytes())?;
    let attributes = Attributes {
        set,
        ..Attributes::default()
    };
    // SAFETY: a path and a structure that live, and the structure's size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns whether `path` leads to the open file.
fn is_same(path: &Path, descriptor: RawFd) -> io::Result<bool> {
    // SAFETY: the caller of `enter_for_program` guarantees that it is open.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
    let open = rustix::fs::fstat(borrowed)?;
    let there = fs::symlink_metadata(path)?;
    Ok((there.dev(), there.ino()) == (open.st_dev, open.st_ino))
}
