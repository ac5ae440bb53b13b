//! What a container's keeper mounts for it, and the root that its first process begins in.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, chmodat, makedev, mknodat, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_bind, move_mount, unmount,
};
use rustix::process::{chdir, pivot_root};

use super::{Error, step};
use crate::walls::root::{PLACE, keep_mounts};

/// The device nodes of a container: Docker's, without a console, and their numbers
/// (Documentation/admin-guide/devices.txt).
const NODES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// What makes network interfaces.
const TUN: (&str, u32, u32) = ("tun", 10, 200);

/// Everyone may read and write a node.
const NODE: Mode = Mode::from_raw_mode(0o666);

/// Makes a container's device nodes, as this machine's root: a user namespace can make none. Returns a detached
/// filesystem with them, so that no file is the host's or another container's: locks, watches and times of one would
/// be seen there.
///
/// # Errors
/// The system's.
pub(super) fn make_nodes() -> io::Result<OwnedFd> {
    make(&NODES)
}

/// Makes a node by which a container's first process makes its network interface, as this machine's root: that process
/// has left root's users when it has its network, and the host's node may be root's alone. Returns a detached filesystem
/// with it, for [`open_tun`].
///
/// # Errors
/// The system's.
pub(super) fn make_tun() -> io::Result<OwnedFd> {
    make(&[TUN])
}

/// Opens what makes network interfaces in the calling process's network namespace, without blocking: the host's node, if
/// none was made.
///
/// # Errors
/// The system's.
pub(super) fn open_tun(made: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(match made {
        Some(nodes) => openat(nodes, TUN.0, flags, Mode::empty())?,
        None => openat(CWD, "/dev/net/tun", flags, Mode::empty())?,
    })
}

fn make(nodes: &[(&str, u32, u32)]) -> io::Result<OwnedFd> {
    let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (option, value) in [("mode", "755"), ("size", "4k"), ("nr_inodes", "16")] {
        fsconfig_set_string(tmpfs.as_fd(), option, value)?;
    }
    fsconfig_create(tmpfs.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = fsmount(tmpfs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    for &(name, major, minor) in nodes {
        mknodat(
            &mount,
            name,
            FileType::CharacterDevice,
            NODE,
            makedev(major, minor),
        )?;
        // The mode is without the bits of the umask.
        chmodat(&mount, name, NODE, AtFlags::empty())?;
    }
    Ok(mount)
}

/// Mounts an EROFS filesystem whose first file begins with its superblock, and whose others are the
/// devices of its table, in order. Returns the mount, which is read-only, detached and nowhere in this
/// process's tree.
///
/// # Errors
/// The kernel's, with what the filesystem says about it. File-backed mounts are in Linux since 6.12.
pub fn mount_erofs(files: &[OwnedFd]) -> io::Result<OwnedFd> {
    let erofs = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let mount = || -> rustix::io::Result<OwnedFd> {
        let context = erofs.as_fd();
        for (file, index) in files.iter().zip(0..) {
            let option = if index == 0 { "source" } else { "device" };
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            fsconfig_set_string(context, option, path)?;
        }
        fsconfig_set_flag(context, "ro")?;
        fsconfig_create(context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
        fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    mount().map_err(|errno| io::Error::new(io::Error::from(errno).kind(), explain(&erofs, errno)))
}

/// Returns an error with the messages that the filesystem left.
fn explain(context: &OwnedFd, errno: rustix::io::Errno) -> String {
    let mut text = match errno {
        rustix::io::Errno::NOTBLK => "this kernel mounts no EROFS filesystem from a file of the \
             store's filesystem (Linux 6.12 does, but not from tmpfs)"
            .to_owned(),
        errno => io::Error::from(errno).to_string(),
    };
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = rustix::io::read(context, &mut buffer) {
        let line = String::from_utf8_lossy(buffer.get(..count).unwrap_or_default());
        // A letter for the severity and a space are before it.
        text.push_str("; ");
        text.push_str(line.trim_end().get(2..).unwrap_or_default());
    }
    text
}

/// Makes the files of a detached mount belong to the users of a namespace to whom they belong on the
/// filesystem.
///
/// # Errors
/// The system's, also if the filesystem has no such mounts.
pub fn map_owners(mount: &OwnedFd, users: &OwnedFd) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: users.as_raw_fd().unsigned_abs().into(),
    };
    // SAFETY: an open descriptor, an empty path, and attributes that live, with their size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Replaces the root by an empty filesystem with `/dev`, `/proc` and `/sys`. The two latter are mounted
/// while the host's are still there, as the kernel wants it, and are this namespace's own. Without `nodes` of its own
/// the container has the host's.
pub(super) fn change_root(nodes: Option<&OwnedFd>) -> Result<(), Error> {
    let failed = |error: crate::walls::Error| step("changing the root")(io::Error::other(error));
    keep_mounts().map_err(failed)?;
    let options: &CStr = c"mode=755,size=1m";
    let flags = rustix::mount::MountFlags::NOSUID;
    rustix::mount::mount("none", PLACE, "tmpfs", flags, options)
        .map_err(step("mounting a root"))?;
    let inside = |name: &str| PathBuf::from(PLACE).join(name);
    for name in ["dev", "proc", "sys"] {
        fs::create_dir(inside(name)).map_err(step("making a directory"))?;
    }
    match nodes {
        Some(nodes) => {
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(nodes, c"", CWD, inside("dev"), flags).map_err(step("mounting /dev"))?;
        }
        None => bind_nodes(&inside("dev"))?,
    }
    for (kind, name) in [("proc", "proc"), ("sysfs", "sys")] {
        mount_new(kind, &inside(name)).map_err(step(&format!(
            "mounting {kind} (a container whose own is masked can't have another)"
        )))?;
    }
    let changing = || step("changing the root");
    chdir(PLACE).map_err(changing())?;
    // The old root is stacked on the new one, and then detached.
    pivot_root(".", ".").map_err(changing())?;
    unmount(".", UnmountFlags::DETACH).map_err(changing())?;
    chdir("/").map_err(changing())
}

/// Mounts the host's nodes in a directory.
fn bind_nodes(directory: &Path) -> Result<(), Error> {
    for (name, ..) in NODES {
        let node = directory.join(name);
        File::create(&node).map_err(step("making a device's place"))?;
        mount_bind(Path::new("/dev").join(name), &node)
            .map_err(step(&format!("mounting /dev/{name}")))?;
    }
    Ok(())
}

fn mount_new(kind: &str, path: &Path) -> rustix::io::Result<()> {
    let filesystem = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(filesystem.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = fsmount(
        filesystem.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&mount, c"", CWD, path, flags)
}
