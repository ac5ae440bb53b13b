//! The mount namespace that commands see: the overlay, and the mounts that Docker adds to it.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, symlink};

use micabox_wire::{Boot, BootFailed};
use rustix::fs::{CWD, Dev, FileType, Mode, OFlags, makedev};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::{Step, UPPER, files};
use crate::exec::Place;
use crate::mount::{self, Filesystem, attach};

/// Creates the namespace with `overlay` as its root. `/proc` is not mounted here: it belongs to a
/// PID namespace and is mounted by its process 1.
pub fn build(overlay: &OwnedFd, boot: &Boot) -> Result<Place, BootFailed> {
    let files = files::prepare(&boot.identity)?;
    let own = open("/proc/self/ns/mnt", OFlags::RDONLY)?;
    // SAFETY: the agent has one thread, and only its file system context changes.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
        .step("make the mount namespace", "of the sandbox")?;
    let mounts = open("/proc/self/ns/mnt", OFlags::RDONLY)?;
    rustix::mount::mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .step("make mounts private", "/")?;
    let files = files.detach()?;
    // Copies of the agent's mounts; the sandbox does not need them.
    for path in [files::DIRECTORY, UPPER, "/sys", "/proc", "/dev"] {
        rustix::mount::unmount(path, UnmountFlags::DETACH).step("detach", path)?;
    }
    attach(overlay, "/").step("attach the overlay", "/")?;
    rustix::process::fchdir(overlay)
        .and_then(|()| rustix::process::chroot("."))
        .step("change root", "to the overlay")?;

    mount_kernel_filesystems()?;
    files.attach()?;
    directory("/proc")?;
    let place = Place::Namespace {
        mounts,
        root: open("/", OFlags::PATH | OFlags::DIRECTORY)?,
        terminals: open("/dev/pts", OFlags::PATH | OFlags::DIRECTORY)?,
        group: None,
        folders: Vec::new(),
    };
    rustix::thread::move_into_link_name_space(
        std::os::fd::AsFd::as_fd(&own),
        Some(LinkNameSpaceType::Mount),
    )
    .step("return to the mount namespace", "of the agent")?;
    Ok(place)
}

fn open(path: &str, flags: OFlags) -> Result<OwnedFd, BootFailed> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).step("open", path)
}

/// Creates a directory to mount on, if the image has none.
fn directory(path: &str) -> Result<(), BootFailed> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .step("make the directory", path)
}

/// Mounts the kernel's filesystems with Docker's options and flags, but writable: the kernel behind
/// `/sys` and `/proc/sys` is the sandbox's own.
fn mount_kernel_filesystems() -> Result<(), BootFailed> {
    let nosuid = MountAttrFlags::MOUNT_ATTR_NOSUID;
    let noexec = nosuid | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let data = noexec | MountAttrFlags::MOUNT_ATTR_NODEV;
    mount_at("sysfs", "/sys", &[], data)?;
    mount_at("cgroup2", "/sys/fs/cgroup", &[], data)?;
    mount_at(
        "tmpfs",
        "/dev",
        &[("mode", "0755"), ("size", "64m")],
        nosuid,
    )?;
    device_nodes()?;
    let pts = [("mode", "0620"), ("gid", "5"), ("ptmxmode", "0666")];
    mount_at("devpts", "/dev/pts", &pts, noexec)?;
    mount_at(
        "tmpfs",
        "/dev/shm",
        &[("mode", "1777"), ("size", "64m")],
        data,
    )?;
    mount_at("mqueue", "/dev/mqueue", &[], data)
}

fn mount_at(
    kind: &str,
    path: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<(), BootFailed> {
    // The kernel provides the directory for control groups.
    if kind != "cgroup2" {
        directory(path)?;
    }
    let mount = || -> Result<(), mount::Error> {
        let filesystem = Filesystem::new(kind)?;
        for (option, value) in options {
            filesystem.set(option, *value)?;
        }
        Ok(attach(&filesystem.mount(attributes)?, path)?)
    };
    mount().step(&format!("mount {kind}"), path)
}

/// Creates Docker's device nodes, `/dev/fuse` and `/dev/vsock`. The kernel is the sandbox's own, so
/// FUSE mounts are harmless; `/dev/vsock` reports the machine's address. The machine's block
/// devices get no nodes.
fn device_nodes() -> Result<(), BootFailed> {
    let nodes: [(&str, Dev, u32); 8] = [
        ("/dev/null", makedev(1, 3), 0o666),
        ("/dev/zero", makedev(1, 5), 0o666),
        ("/dev/full", makedev(1, 7), 0o666),
        ("/dev/random", makedev(1, 8), 0o666),
        ("/dev/urandom", makedev(1, 9), 0o666),
        ("/dev/tty", makedev(5, 0), 0o666),
        ("/dev/console", makedev(5, 1), 0o600),
        ("/dev/fuse", makedev(10, 229), 0o666),
    ];
    for (path, device, mode) in nodes {
        let mode = Mode::from_raw_mode(mode);
        rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, mode, device)
            // Set explicitly, as mknod(2) applies the umask.
            .and_then(|()| rustix::fs::chmod(path, mode))
            .step("make the device node", path)?;
    }
    vsock_node()?;
    for (link, target) in [
        ("/dev/ptmx", "pts/ptmx"),
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, link).step("make the link", link)?;
    }
    Ok(())
}

/// Creates `/dev/vsock`. The kernel chooses its number, and has it only if it supports vsock.
fn vsock_node() -> Result<(), BootFailed> {
    const PATH: &str = "/dev/vsock";
    let Ok(numbers) = fs::read_to_string("/sys/class/misc/vsock/dev") else {
        return Ok(());
    };
    let numbers = numbers.trim().split_once(':');
    let Some((Ok(major), Ok(minor))) = numbers.map(|(a, b)| (a.parse(), b.parse())) else {
        return Ok(());
    };
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(
        CWD,
        PATH,
        FileType::CharacterDevice,
        mode,
        makedev(major, minor),
    )
    .and_then(|()| rustix::fs::chmod(PATH, mode))
    .step("make the device node", PATH)
}
