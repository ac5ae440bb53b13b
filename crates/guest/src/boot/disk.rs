//! Disks that are mounted in the sandbox beside its root: volumes and images. The agent has each
//! mounted as a whole, for its flush at the end; a directory of it is mounted in the sandbox, once
//! or several times.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use micabox_wire::{BootFailed, Format, MountedDisk};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, OpenTreeFlags};

use super::device;
use super::upper::ext4;
use crate::kernel::Disks;
use crate::mount::{self, Filesystem, attach};
use crate::step::Step;

/// Where the agent has disks mounted, each under its serial number.
const DISKS: &str = "/disks";

/// Returns a detached mount of the disk's directory. The disk may be one of `mounts`.
pub fn open(disk: &MountedDisk, read_only: bool, mounts: &Disks) -> Result<OwnedFd, BootFailed> {
    let whole = format!("{DISKS}/{}", disk.serial);
    if let Some(mount) = mounts.take(&disk.serial) {
        fs::create_dir_all(&whole).step("make the directory", &whole)?;
        attach(&mount, &whole).step("mount the disk", &whole)?;
    } else if !Path::new(&whole).is_dir() {
        let device = format!("/dev/{}", device::disk(&disk.serial)?);
        fs::create_dir_all(&whole).step("make the directory", &whole)?;
        filesystem(disk, &device)
            .and_then(|filesystem| {
                let mut attributes = MountAttrFlags::empty();
                attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, !disk.is_written);
                filesystem.mount(attributes)
            })
            .and_then(|mount| Ok(attach(&mount, &whole)?))
            .step("mount the disk", &device)?;
    }
    let target = format!("{whole}/{}", disk.directory);
    let mount = directory(&whole, &disk.directory).step("mount the disk", &target)?;
    if read_only {
        make_read_only(&mount).step("mount the disk read-only", &target)?;
    }
    Ok(mount)
}

/// Returns the mount points of the disks that are mounted.
pub fn mounted() -> Vec<String> {
    let entries = fs::read_dir(DISKS).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path().to_string_lossy().into_owned());
    paths.collect()
}

fn filesystem(disk: &MountedDisk, device: &str) -> Result<Filesystem, mount::Error> {
    if disk.is_written {
        return ext4(device);
    }
    let filesystem = Filesystem::new(match disk.format {
        Format::Erofs => "erofs",
        Format::Ext4 => "ext4",
    })?;
    filesystem.set("source", device)?;
    filesystem.set_flag("ro")?;
    Ok(filesystem)
}

/// Returns a detached mount of a directory below `root`, from where no link leads out.
fn directory(root: &str, path: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let path = format!("./{path}");
    let directory = openat2(
        &root,
        path,
        flags | OFlags::DIRECTORY,
        Mode::empty(),
        resolve,
    )?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(&directory, c"", flags)
}

/// Makes a mount read-only, and leaves the filesystem's other mounts as they are.
fn make_read_only(mount: &OwnedFd) -> rustix::io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
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
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}
