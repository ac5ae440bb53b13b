//! The sandbox's root: an overlay over read-only filesystems, or a disk.

use std::fs;
use std::os::fd::OwnedFd;

use micabox_wire::{Boot, BootFailed, Device, Extent, Format, Upper};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags};

use super::clock::Clock;
use super::device::{BlockDevice, Devices};
use super::upper;
use crate::kernel::{Disks, Kernel};
use crate::mount::{self, Filesystem, attach};
use crate::step::{Step, failed, of_root};

/// Where the overlay's lower side is mounted.
pub const LOWERS: &str = "/lower";

/// Mounts the root: its layers and the overlay, or a root disk in place. Returns it detached.
pub fn mount(
    boot: &Boot,
    kernel: Kernel,
    disks: &Disks,
    clock: &mut Clock,
) -> Result<OwnedFd, BootFailed> {
    if let Upper::InPlace { serial } = &boot.upper {
        let root = upper::mount_in_place(serial).map_err(of_root)?;
        clock.lap("root");
        return Ok(root);
    }
    if boot.lowers.is_empty() {
        return Err(failed(
            "mount the image",
            "it",
            0,
            "the host named no layers",
        ));
    }
    let mut lowers = match kernel {
        Kernel::Own => mount_lowers(boot, clock)?,
        Kernel::Hosts => attach_lowers(boot, disks)?,
    };
    lowers.push(mount_places()?);
    clock.lap("lower");

    let mut layers = lowers.clone();
    if let Upper::Tmpfs {
        patches: Some(serial),
        ..
    } = &boot.upper
    {
        layers.insert(0, upper::mount_patches(serial)?);
        lowers.push(upper::PATCHES.to_owned());
    }
    let upper = upper::prepare(&boot.upper, layers.first().map_or("/", String::as_str))?;
    clock.lap("upper");
    let overlay = mount_overlay(&layers, &upper, kernel)?;
    // The overlay holds the lower mounts; they need not be visible. On the host's kernel they go with all
    // others.
    for path in lowers.iter().filter(|_| kernel == Kernel::Own) {
        rustix::mount::unmount(path, UnmountFlags::DETACH).step("detach", path)?;
    }
    clock.lap("overlay");
    Ok(overlay)
}

/// Attaches the mounts that a container's keeper has made of its disks. Returns their paths.
fn attach_lowers(boot: &Boot, disks: &Disks) -> Result<Vec<String>, BootFailed> {
    let step = "mount the image";
    let mut lowers = Vec::new();
    for (index, lower) in boot.lowers.iter().enumerate() {
        let mount = match &lower.image {
            Extent {
                device: Device::Disk { serial },
                range: None,
            } => disks.take(serial),
            _ => None,
        };
        let mount = mount.ok_or(Errno::NODEV).step(step, "its disk")?;
        let path = format!("{LOWERS}/{index}");
        fs::create_dir_all(&path).step("make the directory", &path)?;
        attach(&mount, &path).step(step, &path)?;
        lowers.push(path);
    }
    Ok(lowers)
}

/// Finds the devices of the overlay's lower side, and mounts them. Returns their paths.
fn mount_lowers(boot: &Boot, clock: &mut Clock) -> Result<Vec<String>, BootFailed> {
    let mut devices = Devices::default();
    let mut found = Vec::new();
    for lower in &boot.lowers {
        let image = devices.get(&lower.image)?;
        let others = lower
            .devices
            .iter()
            .map(|extent| devices.get(extent))
            .collect::<Result<Vec<_>, _>>()?;
        // An image may contain a layer twice (mostly empty ones). All entries of the lower one are
        // repeated by the upper one, and overlayfs rejects duplicates.
        if !found.contains(&(lower.format, image.clone(), others.clone())) {
            found.push((lower.format, image, others));
        }
    }
    clock.lap("devices");

    let count = found.len();
    let mut lowers = Vec::new();
    for (index, (format, image, others)) in found.iter().enumerate() {
        let path = format!("{LOWERS}/{index}");
        let target = match count {
            1 => format!("the image ({})", image.path),
            _ => format!(
                "layer {} of {count} from the top ({})",
                index + 1,
                image.path
            ),
        };
        fs::create_dir_all(&path).step("make the directory", &path)?;
        let (name, mount) = match format {
            Format::Erofs => ("mount EROFS", mount_erofs(image, others)),
            Format::Ext4 => ("mount ext4", mount_ext4(image)),
        };
        mount
            .and_then(|mount| Ok(attach(&mount, &path)?))
            .step(name, target)
            .map_err(of_root)?;
        lowers.push(path);
    }
    Ok(lowers)
}

fn mount_erofs(image: &BlockDevice, others: &[BlockDevice]) -> Result<OwnedFd, mount::Error> {
    let erofs = Filesystem::new("erofs")?;
    erofs.set("source", &image.path)?;
    erofs.set_flag("ro")?;
    for device in others {
        erofs.set("device", &device.path)?;
    }
    if image.dax {
        erofs.set("dax", "always")?;
    }
    erofs.mount(MountAttrFlags::MOUNT_ATTR_RDONLY)
}

/// Mounts an ext4 filesystem whose journal is empty. `noload` avoids the writes that even examining
/// the journal would cause.
fn mount_ext4(image: &BlockDevice) -> Result<OwnedFd, mount::Error> {
    let ext4 = Filesystem::new("ext4")?;
    ext4.set("source", &image.path)?;
    ext4.set_flag("ro")?;
    ext4.set_flag("noload")?;
    if image.dax {
        ext4.set("dax", "always")?;
    }
    ext4.mount(MountAttrFlags::MOUNT_ATTR_RDONLY)
}

/// Mounts the lowest layer, which has the mount points that the agent needs. So they exist in every
/// image, and are not part of the sandbox's changes.
fn mount_places() -> Result<String, BootFailed> {
    let places = format!("{LOWERS}/places");
    fs::create_dir_all(&places).step("make the directory", &places)?;
    Filesystem::new("tmpfs")
        .and_then(|tmpfs| {
            tmpfs.set("size", "64k")?;
            tmpfs.set("mode", "0755")?;
            tmpfs.mount(MountAttrFlags::empty())
        })
        .and_then(|mount| Ok(attach(&mount, &places)?))
        .step("mount tmpfs", &places)?;
    for directory in ["dev", "proc", "sys", "etc"] {
        let path = format!("{places}/{directory}");
        fs::create_dir(&path).step("make the directory", path)?;
    }
    for name in super::files::NAMES {
        let path = format!("{places}/etc/{name}");
        fs::write(&path, "").step("make the file", path)?;
    }
    Ok(places)
}

fn mount_overlay(lowers: &[String], upper: &str, kernel: Kernel) -> Result<OwnedFd, BootFailed> {
    let overlay = || {
        let overlay = Filesystem::new("overlay")?;
        for lower in lowers {
            overlay.set("lowerdir+", lower)?;
        }
        overlay.set("upperdir", upper)?;
        overlay.set("workdir", upper::WORK)?;
        // One device number for the whole tree. Otherwise unchanged files have another device
        // number than their directory, and `tar --one-file-system` skips them.
        overlay.set("xino", "on")?;
        // As in Docker, renaming a directory of the image fails with EXDEV, and the upper layer is
        // self-contained: an image layer can be made from it without the lowers.
        overlay.set("redirect_dir", "nofollow")?;
        overlay.set("metacopy", "off")?;
        overlay.set("index", "off")?;
        if kernel == Kernel::Hosts {
            // Root of a user namespace may set no others.
            overlay.set_flag("userxattr")?;
        }
        overlay.mount(MountAttrFlags::empty())
    };
    overlay().step("mount the overlay", format!("{} layers", lowers.len()))
}
