//! The kernel's own EROFS, of files (Linux 6.12).

use std::path::Path;

use micabox_image::store::Image;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

/// Mounts an image read-only, its merged metadata as the filesystem and its layers as devices. They come
/// from the store, where this program has made each of them from an archive.
pub(super) fn mount(image: &Image, place: &Path) -> Result<(), Errno> {
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let context = &context;
    fsconfig_set_string(context, "source", &*image.fsmeta)?;
    for layer in &image.layers {
        fsconfig_set_string(context, "device", &*layer.path)?;
    }
    fsconfig_set_flag(context, "ro")?;
    fsconfig_create(context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    move_mount(
        &mount,
        "",
        CWD,
        place,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
}
