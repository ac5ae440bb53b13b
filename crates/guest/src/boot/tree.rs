//! The mount namespace that commands see: the overlay, and the mounts that Docker adds to it.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, symlink};

use micabox_wire::{Boot, BootFailed};
use rustix::fs::{CWD, Dev, FileType, Mode, OFlags, makedev};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, OpenTreeFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::files;
use super::root::LOWERS;
use super::upper::UPPER;
use crate::kernel::{Kernel, has_one_user};
use crate::mount::{self, Filesystem, attach};
use crate::sandbox::{Place, masks};
use crate::step::Step;

/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// Creates the namespace with `overlay` as its root. `/proc` is not mounted here: it belongs to a
/// PID namespace and is mounted by its process 1.
pub fn build(overlay: &OwnedFd, boot: &Boot, kernel: Kernel) -> Result<Place, BootFailed> {
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
    let filesystems = kernel_filesystems(kernel)?;
    let nodes = match kernel {
        Kernel::Own => Vec::new(),
        Kernel::Hosts => device_mounts()?,
    };
    match kernel {
        Kernel::Own => cover_root(overlay)?,
        Kernel::Hosts => replace_root(overlay)?,
    }

    for (filesystem, path) in &filesystems {
        // The kernel provides the directory for control groups.
        if *path != GROUPS {
            directory(path)?;
        }
        attach(filesystem, *path).step("mount", path)?;
        if *path == "/dev" {
            match kernel {
                Kernel::Own => device_nodes()?,
                Kernel::Hosts => attach_devices(&nodes)?,
            }
            device_links()?;
        }
    }
    if kernel == Kernel::Hosts {
        masks::cover_sys().step("hide", "what is the host's in /sys")?;
    }
    files.attach()?;
    directory("/proc")?;
    let place = Place::Namespace {
        mounts,
        root: open("/", OFlags::PATH | OFlags::DIRECTORY)?,
        terminals: open("/dev/pts", OFlags::PATH | OFlags::DIRECTORY)?,
        group: None,
        folders: Vec::new(),
        kernel,
    };
    rustix::thread::move_into_link_name_space(
        std::os::fd::AsFd::as_fd(&own),
        Some(LinkNameSpaceType::Mount),
    )
    .step("return to the mount namespace", "of the agent")?;
    Ok(place)
}

/// Attaches the overlay over the root, which a machine's kernel lets no mount replace. Copies of the agent's
/// mounts are detached before: the sandbox does not need them.
fn cover_root(overlay: &OwnedFd) -> Result<(), BootFailed> {
    for path in [files::DIRECTORY, UPPER, "/sys", "/proc", "/dev"] {
        rustix::mount::unmount(path, UnmountFlags::DETACH).step("detach", path)?;
    }
    attach(overlay, "/").step("attach the overlay", "/")?;
    rustix::process::fchdir(overlay)
        .and_then(|()| rustix::process::chroot("."))
        .step("change root", "to the overlay")
}

/// Replaces the root by the overlay, and detaches all of the agent's mounts at once: the kernel waits for
/// all of the host's processors each time that something is detached (`namespace_unlock`).
fn replace_root(overlay: &OwnedFd) -> Result<(), BootFailed> {
    attach(overlay, LOWERS).step("attach the overlay", LOWERS)?;
    rustix::process::fchdir(overlay)
        .and_then(|()| rustix::process::pivot_root(".", "."))
        .and_then(|()| rustix::mount::unmount(".", UnmountFlags::DETACH))
        .and_then(|()| rustix::process::chdir("/"))
        .step("change root", "to the overlay")
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

/// A detached mount, and where it belongs.
type Detached = (OwnedFd, &'static str);

/// Returns mounts of the kernel's filesystems with Docker's options and flags. On a kernel of the sandbox's
/// own, what is behind `/sys` and `/proc/sys` is writable. They are made while the agent's `/sys` is still
/// seen, as the kernel wants it in a user namespace.
fn kernel_filesystems(kernel: Kernel) -> Result<Vec<Detached>, BootFailed> {
    let nosuid = MountAttrFlags::MOUNT_ATTR_NOSUID;
    let noexec = nosuid | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let data = noexec | MountAttrFlags::MOUNT_ATTR_NODEV;
    let kernels = match kernel {
        Kernel::Own => data,
        Kernel::Hosts => data | MountAttrFlags::MOUNT_ATTR_RDONLY,
    };
    let dev = [("mode", "0755"), ("size", "64m")];
    // The group `tty`, where there is more than root's.
    let pts = [("mode", "0620"), ("ptmxmode", "0666"), ("gid", "5")];
    let pts = pts.get(..if has_one_user() { 2 } else { 3 });
    let shm = [("mode", "1777"), ("size", "64m")];
    let all = [
        ("sysfs", "/sys", &[][..], kernels),
        ("cgroup2", GROUPS, &[], kernels),
        ("tmpfs", "/dev", &dev, nosuid),
        ("devpts", "/dev/pts", pts.unwrap_or_default(), noexec),
        ("tmpfs", "/dev/shm", &shm, data),
        ("mqueue", "/dev/mqueue", &[], data),
    ];
    let mounts = all.into_iter().map(|(kind, path, options, attributes)| {
        let mount = || -> Result<OwnedFd, mount::Error> {
            let filesystem = Filesystem::new(kind)?;
            for (option, value) in options {
                filesystem.set(option, *value)?;
            }
            filesystem.mount(attributes)
        };
        Ok((mount().step(&format!("mount {kind}"), path)?, path))
    });
    mounts.collect()
}

/// The nodes that a container's keeper has put into the agent's `/dev`: Docker's.
const HOST_NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Returns mounts of these nodes, for a sandbox that can't make any.
fn device_mounts() -> Result<Vec<OwnedFd>, BootFailed> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let nodes = HOST_NODES.iter().map(|name| {
        let path = format!("/dev/{name}");
        rustix::mount::open_tree(CWD, &path, flags).step("mount", path)
    });
    nodes.collect()
}

fn attach_devices(nodes: &[OwnedFd]) -> Result<(), BootFailed> {
    for (name, node) in HOST_NODES.iter().zip(nodes) {
        let path = format!("/dev/{name}");
        fs::write(&path, "").step("make the file", &path)?;
        attach(node, &path).step("mount", path)?;
    }
    Ok(())
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
    vsock_node()
}

/// Creates the links that programs expect beside the nodes.
fn device_links() -> Result<(), BootFailed> {
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
