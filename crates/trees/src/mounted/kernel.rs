//! What the kernel mounts itself: EROFS of files (Linux 6.12), and an overlay with changes over it, whose
//! layers are mounted nowhere else (Linux 6.15).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use micabox_image::store::Image;
use micabox_mount::Target;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_fd,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};

use super::layer;

/// Set-id bits and devices have no effect in a tree that others made.
const FOREIGN: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// Makes a read-only mount of an image, its merged metadata as the filesystem and its layers as devices.
/// They come from the store, where this program has made each of them from an archive.
pub(super) fn erofs(image: &Image) -> Result<OwnedFd, Errno> {
    let context = &open("erofs")?;
    fsconfig_set_string(context, "source", &*image.fsmeta)?;
    for layer in &image.layers {
        fsconfig_set_string(context, "device", &*layer.path)?;
    }
    fsconfig_set_flag(context, "ro")?;
    make(context, FOREIGN.union(MountAttrFlags::MOUNT_ATTR_RDONLY))
}

/// Makes a folder in memory, for [`overlay`]: a mount that is nowhere, and is undone when the file and its
/// copies are closed.
pub(super) fn memory(bytes: u64, inodes: u64) -> Result<File, Errno> {
    let context = &open("tmpfs")?;
    fsconfig_set_string(context, "size", bytes.to_string())?;
    fsconfig_set_string(context, "nr_inodes", inodes.to_string())?;
    fsconfig_set_string(context, "mode", "0700")?;
    make(context, MountAttrFlags::empty()).map(File::from)
}

/// Makes a mount of changes in `folder` over `lower`.
pub(super) fn overlay(lower: &OwnedFd, folder: &File) -> Result<OwnedFd, Errno> {
    let lower = directory(lower, ".")?;
    let (upper, work) = layer::prepare(folder, &lower)?;
    let context = &open("overlay")?;
    fsconfig_set_fd(context, "lowerdir+", lower)?;
    fsconfig_set_fd(context, "upperdir", upper)?;
    fsconfig_set_fd(context, "workdir", work)?;
    // As in a sandbox: the upper is a layer of its own, and the tree has one device number.
    for (name, value) in [
        ("xino", "on"),
        ("redirect_dir", "nofollow"),
        ("metacopy", "off"),
        ("index", "off"),
    ] {
        fsconfig_set_string(context, name, value)?;
    }
    make(context, FOREIGN)
}

/// Puts a mount on a directory.
pub(super) fn attach(mount: &OwnedFd, place: &Path) -> io::Result<()> {
    let place = Target::find(place)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", &place, "", flags)?)
}

fn open(kind: &str) -> Result<OwnedFd, Errno> {
    fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)
}

fn make(context: &OwnedFd, attributes: MountAttrFlags) -> Result<OwnedFd, Errno> {
    fsconfig_create(context)?;
    fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Opens a directory in a mount or a directory.
pub(super) fn directory(above: &impl std::os::fd::AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(above, name, flags, Mode::empty())
}
