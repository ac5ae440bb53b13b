//! What the sandbox has beyond its root: further mounts, and a root that is read-only.
//!
//! The agent makes them itself, in the sandbox's mount namespace and below its root: at boot, and
//! in a machine that was saved before its sandbox was known. In a copy of a sandbox that has run
//! commands, a filesystem that hangs keeps the copy from starting, and nothing else.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use micabox_tree::Root;
use micabox_wire::{BootFailed, Mount, MountSource, Setup, Tmpfs};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, chmodat, fstat, openat2};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountFlags, OpenTreeFlags, mount_remount, open_tree};
use rustix::thread::LinkNameSpaceType;

use super::{disk, files, share};
use crate::kernel::Disks;
use crate::mount::{self, Filesystem, attach_to};
use crate::sandbox::{Place, child, group};
use crate::step::Step;

/// The mode of a tmpfs on a directory that is made for it.
const TMPFS_MODE: u32 = 0o1777;

const SHM: &str = "/dev/shm";

/// Flags of the mounts of `/sys` and `/dev/shm`.
const DATA: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NOEXEC)
    .union(MountFlags::NODEV);

/// Makes the mounts and applies the limits of `setup`.
pub fn apply(setup: &Setup, place: &mut Place, disks: &Disks) -> Result<(), BootFailed> {
    if matches!(place, Place::Here) || *setup == Setup::default() {
        return Ok(());
    }
    // The sandbox need not have the devices.
    let opened = setup.mounts.iter().map(|mount| match &mount.source {
        MountSource::Tmpfs(_) | MountSource::Device { .. } => Ok(None),
        MountSource::Disk(disk) => disk::open(disk, mount.read_only, disks).map(Some),
        MountSource::Share { tag, file, user } => {
            let owner = share::owner(user, place);
            share::open(tag, file.as_deref(), &owner, mount.read_only)
                .step("mount the share for", &mount.target)
                .map(Some)
        }
    });
    let opened: Vec<Option<OwnedFd>> = opened.collect::<Result<_, _>>()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let own = rustix::fs::open("/proc/self/ns/mnt", flags, Mode::empty())
        .step("open the mount namespace", "of the agent")?;
    let result = child::enter_mounts(place)
        .step("enter the mount namespace", "of the sandbox")
        .and_then(|()| set_up(setup, opened, place));
    rustix::thread::move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::Mount))
        .step("return to the mount namespace", "of the agent")?;
    result
}

fn set_up(
    setup: &Setup,
    opened: Vec<Option<OwnedFd>>,
    place: &mut Place,
) -> Result<(), BootFailed> {
    let Place::Namespace {
        root,
        group,
        folders,
        ..
    } = place
    else {
        return Ok(());
    };
    if let Some(processes) = setup.max_processes {
        *group = Some(group::make(processes)?);
    }
    if let Some(bytes) = setup.shm_bytes {
        mount_remount(SHM, DATA, format!("size={bytes}")).step("resize", SHM)?;
    }
    let root = Root::new(root.try_clone().step("open", "/")?);
    for (mount, opened) in setup.mounts.iter().zip(opened) {
        make(mount, opened, &root)?;
        if let MountSource::Share { file: None, .. } = mount.source {
            folders.push(mount.target.clone());
        }
    }
    if setup.read_only {
        make_read_only(&setup.mounts)?;
    }
    Ok(())
}

/// Mounts a filesystem, which is `opened` if the agent had to do that outside the sandbox.
fn make(mount: &Mount, opened: Option<OwnedFd>, root: &Root) -> Result<(), BootFailed> {
    let mode = match &mount.source {
        MountSource::Tmpfs(_) => TMPFS_MODE,
        MountSource::Disk(_) | MountSource::Share { .. } | MountSource::Device { .. } => 0o755,
    };
    let path = mount.target.as_bytes();
    let target = match &mount.source {
        MountSource::Share { file: Some(_), .. } | MountSource::Device { .. } => {
            root.made_file(path).step("make the file", &mount.target)?
        }
        _ => directory(root, path, mode).step("make the directory", &mount.target)?,
    };
    match &mount.source {
        MountSource::Tmpfs(options) => {
            tmpfs(options, mount.read_only, &target).step("mount tmpfs", &mount.target)
        }
        MountSource::Device { path } => device(root, path)
            .and_then(|device| attach_to(&device, &target))
            .step("mount the device", path),
        MountSource::Disk(_) | MountSource::Share { .. } => match opened {
            Some(opened) => attach_to(&opened, &target).step("mount", &mount.target),
            None => Ok(()),
        },
    }
}

/// Makes a detached mount of one of the sandbox's own devices.
fn device(root: &Root, path: &str) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let place = OFlags::PATH | OFlags::CLOEXEC;
    let device = openat2(root, path, place, Mode::empty(), resolve)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(&device, c"", flags)
}

/// Returns the directory to mount on. If it is missing it is made with `mode`, and what leads to it
/// with 0755, all owned by root, as Docker does. Links are followed as a process in the sandbox
/// would.
fn directory(root: &Root, target: &[u8], mode: u32) -> rustix::io::Result<OwnedFd> {
    match root.directory(target) {
        Err(Errno::NOENT) => {}
        found => return found,
    }
    let made = root.made_directory(target)?;
    // By its path: no descriptor of a place changes a mode.
    let way = root.way(target)?;
    let (parent, name) = root.parent(&way)?;
    chmodat(&parent, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
    Ok(made)
}

fn tmpfs(options: &Tmpfs, read_only: bool, target: &OwnedFd) -> Result<(), mount::Error> {
    let tmpfs = Filesystem::new("tmpfs")?;
    if let Some(bytes) = options.size_bytes {
        tmpfs.set("size", bytes.to_string())?;
    }
    if let Some(inodes) = options.inodes {
        tmpfs.set("nr_inodes", inodes.to_string())?;
    }
    let mode = match options.mode {
        Some(mode) => mode,
        None => Mode::from_raw_mode(fstat(target)?.st_mode).bits(),
    };
    tmpfs.set("mode", format!("{mode:o}"))?;
    tmpfs.set("uid", options.uid.to_string())?;
    tmpfs.set("gid", options.gid.to_string())?;
    let mut attributes = MountAttrFlags::empty();
    for (is_set, flag) in [
        (read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (!options.exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (!options.suid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (!options.dev, MountAttrFlags::MOUNT_ATTR_NODEV),
    ] {
        attributes.set(flag, is_set);
    }
    let mount = tmpfs.mount(attributes)?;
    Ok(attach_to(&mount, target)?)
}

/// Makes the root read-only, and every mount that Docker makes read-only with it: all but `/proc`,
/// those at and below `/dev`, and the `mounts` that the user asked for.
fn make_read_only(mounts: &[Mount]) -> Result<(), BootFailed> {
    let of_etc = files::NAMES.map(|name| (format!("/etc/{name}"), MountFlags::empty()));
    let kernel = ["/sys/fs/cgroup", "/sys"].map(|path| (path.to_owned(), DATA));
    let root = ("/".to_owned(), MountFlags::empty());
    for (path, flags) in of_etc.into_iter().chain(kernel).chain([root]) {
        if mounts
            .iter()
            .any(|mount| Path::new(&mount.target) == Path::new(&path))
        {
            continue;
        }
        let flags = flags | MountFlags::BIND | MountFlags::RDONLY;
        match mount_remount(&path, flags, c"") {
            // A mount of the user's covers it.
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) if path != "/" => {}
            result => result.step("make read-only", path)?,
        }
    }
    Ok(())
}
