//! Plans which devices a machine gets, and how the guest mounts them.
//!
//! An image is an ordered list of extents: `[fsmeta | layer 0 | layer 1 | ...]`, bottom layer
//! first, each a file of a multiple of 2 MiB. The same list reaches a guest over one of two
//! transports, and the guest makes one of two roots of it:
//!
//! | | pmem | blk |
//! |---|---|---|
//! | merged | fsmeta mounted over its layers | one disk, mounted as one flat image |
//! | stacked | one mount for each layer | pieces of one disk, one mount each |
//!
//! Where a backend can map many files into one pmem region, all of pmem is that one region;
//! otherwise every extent is a device. Pieces of one device are also partitions of a table around
//! them (`packed.rs`). A merged disk may have its hash tree on another one (`checked.rs`).

mod checked;
mod of_base;
mod packed;
mod partitions;

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;

use micabox_error::{MOST_LAYERS, PlanError};
use micabox_holders::{ImageFile, ImageFiles};
use micabox_parsers::RootDisk;
use micabox_spec::{Root, Transport};
use micabox_vmm::{Disk, FilesPerRegion, Limits, MachineFile, PmemRegion};
use micabox_wire::{Device, Extent, Format, Lower, Range};

pub use of_base::{of_base, readers};
use packed::Packed;
use partitions::Table;

/// Serial number of the disk that holds the flat image.
pub const IMAGE_SERIAL: &str = "image";

/// Serial number of a disk that is the root.
pub const ROOT_SERIAL: &str = "root";

/// A machine's devices, and how the guest mounts them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Never [`Transport::Auto`].
    pub transport: Transport,
    /// As requested; merged for an image without layers.
    pub root: Root,
    /// pmem regions for the machine.
    pub pmem: Vec<PmemRegion>,
    /// Disks for the machine.
    pub disks: Vec<Disk>,
    /// Trees for a machine without a kernel of its own, in place of disks.
    pub trees: Vec<micabox_vmm::Tree>,
    /// The overlay's lower side for the guest, topmost first.
    pub lowers: Vec<Lower>,
    /// The partition table of the one device with all layers, until it is
    /// [written](Self::write_files) and its files are the device's first and last.
    pub table: Option<Table>,
    /// Why the transport was chosen, if it was not requested.
    pub reason: Option<String>,
}

impl Plan {
    /// Plans the devices for `image` on a backend with `limits`.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn new(
        image: &ImageFiles,
        transport: Transport,
        root: Root,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        // An image without layers has nothing to stack; its fsmeta is an empty root.
        let root = if image.layers.is_empty() {
            Root::Merged
        } else {
            root
        };
        let (transport, reason) = choose(image, transport, root, limits);
        let plan = match (transport, root) {
            (Transport::Blk, Root::Merged) => merged_disk(image),
            (Transport::Blk, Root::Stacked) => stacked_disk(image),
            (_, Root::Merged) => merged_pmem(image, limits),
            (_, Root::Stacked) => stacked_pmem(image, limits),
        };
        let plan = Self {
            transport,
            root,
            reason,
            ..plan
        };
        plan.check(limits)?;
        Ok(plan)
    }

    /// Plans for an image that is mounted already when the machine starts, as the tree of the serial
    /// number [`IMAGE_SERIAL`].
    pub fn of_tree() -> Self {
        Self {
            transport: Transport::Blk,
            ..Self::of(Vec::new(), Vec::new(), vec![whole_disk()])
        }
    }

    /// Adds trees.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn add_trees(
        &mut self,
        trees: Vec<micabox_vmm::Tree>,
        limits: &Limits,
    ) -> Result<(), PlanError> {
        self.trees.extend(trees);
        self.check(limits)
    }

    /// Plans the devices for a root disk, which is `file`.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn of_disk(
        disk: &RootDisk,
        file: MachineFile,
        transport: Transport,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        let unmapped = match (disk.in_place, disk.unmapped.as_deref()) {
            (true, _) => Some("it is to be written to"),
            (false, None) if limits.public_regions && is_private(&file) => Some(PRIVATE),
            (false, why) => why,
        };
        let (transport, reason) = match (transport, unmapped) {
            (Transport::Pmem, Some(why)) => {
                return Err(PlanError::Unmapped {
                    path: disk.path.clone(),
                    why: why.to_owned(),
                });
            }
            (Transport::Auto, Some(why)) => (Transport::Blk, Some(why.to_owned())),
            (Transport::Auto, None) => (Transport::Pmem, Some("no copy in the guest".into())),
            (wish, _) => (wish, None),
        };
        let mut plan = Self::of(Vec::new(), Vec::new(), Vec::new());
        let image = match transport {
            Transport::Pmem => {
                plan.pmem.push(PmemRegion { files: vec![file] });
                on_pmem(disk.uuid, None)
            }
            _ => {
                plan.disks.push(Disk {
                    files: vec![file],
                    read_only: !disk.in_place,
                    serial: ROOT_SERIAL.into(),
                });
                on_disk(ROOT_SERIAL, None)
            }
        };
        if !disk.in_place {
            plan.lowers.push(Lower {
                format: disk.format.into(),
                image,
                devices: Vec::new(),
            });
        }
        let plan = Self {
            transport,
            reason,
            ..plan
        };
        plan.check(limits)?;
        Ok(plan)
    }

    /// Adds a disk apart from the image's.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn add_disk(&mut self, disk: Disk, limits: &Limits) -> Result<(), PlanError> {
        self.disks.push(disk);
        self.check(limits)
    }

    fn check(&self, limits: &Limits) -> Result<(), PlanError> {
        let layers = self.lowers.len();
        if layers > MOST_LAYERS {
            return Err(PlanError::TooManyLayers { layers });
        }
        let needed = self.pmem.len() + self.disks.len() + self.trees.len();
        if needed > limits.max_devices {
            return Err(PlanError::TooManyDevices {
                needed,
                limit: limits.max_devices,
                transport: self.transport,
                root: self.root,
            });
        }
        Ok(())
    }

    /// Returns the RAM that the guest's kernel needs to describe pmem: a structure of 64 bytes for
    /// each page of 4 KiB, in MiB, rounded up.
    pub fn pmem_overhead_mib(&self) -> u32 {
        let pmem = self
            .pmem
            .iter()
            .fold(0_u64, |sum, region| sum.saturating_add(region.size()));
        u32::try_from((pmem / 4096 * 64).div_ceil(1 << 20)).unwrap_or(u32::MAX)
    }

    fn of(pmem: Vec<PmemRegion>, disks: Vec<Disk>, lowers: Vec<Lower>) -> Self {
        Self {
            transport: Transport::Auto,
            root: Root::Merged,
            pmem,
            disks,
            trees: Vec::new(),
            lowers,
            table: None,
            reason: None,
        }
    }
}

/// Why a backend's process, which is not root, can't map a file that only root may read.
const PRIVATE: &str = "only root may read it, and the machine's process is not root";

/// Whether a file is not readable for all users.
fn is_private(file: &MachineFile) -> bool {
    let metadata = file.file().metadata();
    metadata.is_ok_and(|meta| meta.permissions().mode() & 0o004 == 0)
}

/// Chooses the transport. Returns the reason too, unless the transport was requested.
fn choose(
    image: &ImageFiles,
    wish: Transport,
    root: Root,
    limits: &Limits,
) -> (Transport, Option<String>) {
    if wish != Transport::Auto {
        return (wish, None);
    }
    let extents = match root {
        Root::Merged => 1 + image.layers.len(),
        Root::Stacked => image.layers.len() + usize::from(image.fixup.is_some()),
    };
    let regions = match limits.files_per_region {
        FilesPerRegion::One => extents,
        FilesPerRegion::Many => 1,
    };
    let mut files = image.layers.iter().chain([&image.fsmeta]);
    if limits.public_regions && files.any(|file| is_private(&file.file)) {
        return (Transport::Blk, Some(PRIVATE.to_owned()));
    }
    if regions <= limits.cheap_regions.min(limits.max_devices) {
        return (Transport::Pmem, Some("no copy in the guest".into()));
    }
    let reason = format!(
        "{regions} pmem devices take longer to start than a disk; up to {} do not",
        limits.cheap_regions
    );
    (Transport::Blk, Some(reason))
}

fn merged_pmem(image: &ImageFiles, limits: &Limits) -> Plan {
    let files = std::iter::once(&image.fsmeta).chain(&image.layers);
    let whole = |file: &ImageFile| on_pmem(file.uuid, None);
    let (pmem, devices) = match limits.files_per_region {
        // In one region, the layers are at the addresses that fsmeta names.
        FilesPerRegion::Many => (vec![region(files)], Vec::new()),
        FilesPerRegion::One => (region_each(files), image.layers.iter().map(whole).collect()),
    };
    let lower = Lower {
        format: Format::Erofs,
        image: whole(&image.fsmeta),
        devices,
    };
    Plan::of(pmem, Vec::new(), vec![lower])
}

fn stacked_pmem(image: &ImageFiles, limits: &Limits) -> Plan {
    let files = image.layers.iter().chain(&image.fixup);
    match limits.files_per_region {
        FilesPerRegion::One => {
            // EROFS refuses a device of another mounted image as its own device, but two pieces of
            // one device are two devices. So with a fixup, every layer is a piece, which happens to
            // be all of its device.
            let range = |file: &ImageFile| {
                let length = file.file.length();
                image.fixup.as_ref().map(|_| Range { offset: 0, length })
            };
            let layers: Vec<_> = image
                .layers
                .iter()
                .map(|layer| on_pmem(layer.uuid, range(layer)))
                .collect();
            let fixup = image.fixup.as_ref().map(|fixup| Lower {
                format: Format::Erofs,
                image: on_pmem(fixup.uuid, None),
                devices: layers.clone(),
            });
            let lowers = stack(image, layers, fixup);
            Plan::of(region_each(files), Vec::new(), lowers)
        }
        FilesPerRegion::Many => {
            let packed = Packed::new(image);
            let lowers = packed.lowers(image, Device::Pmem { uuid: packed.uuid });
            let region = PmemRegion {
                files: packed.files,
            };
            Plan {
                table: packed.table,
                ..Plan::of(vec![region], Vec::new(), lowers)
            }
        }
    }
}

fn merged_disk(image: &ImageFiles) -> Plan {
    let disk = image_disk(image, IMAGE_SERIAL.into());
    Plan::of(Vec::new(), vec![disk], vec![whole_disk()])
}

/// Returns the mount of the flat image.
fn whole_disk() -> Lower {
    Lower {
        format: Format::Erofs,
        image: on_disk(IMAGE_SERIAL, None),
        devices: Vec::new(),
    }
}

fn stacked_disk(image: &ImageFiles) -> Plan {
    let packed = Packed::new(image);
    let serial = IMAGE_SERIAL.to_owned();
    let lowers = packed.lowers(image, Device::Disk { serial });
    let disk = Disk {
        files: packed.files,
        read_only: true,
        serial: IMAGE_SERIAL.into(),
    };
    Plan {
        table: packed.table,
        ..Plan::of(Vec::new(), vec![disk], lowers)
    }
}

/// Returns the mounts of a stacked root, topmost first, from the layers' extents and the fixup.
fn stack(image: &ImageFiles, layers: Vec<Extent>, fixup: Option<Lower>) -> Vec<Lower> {
    let mut lowers = Vec::from_iter(fixup);
    let mut seen = HashSet::new();
    let layers = image.layers.iter().zip(layers).skip(image.first_layer);
    for (file, image) in layers.rev() {
        // overlayfs refuses the same layer twice. Of a layer that an image has twice, the upper one
        // shows everything that the lower one could.
        if seen.insert(file.uuid) {
            lowers.push(Lower {
                format: Format::Erofs,
                image,
                devices: Vec::new(),
            });
        }
    }
    lowers
}

/// Returns a disk that holds the flat image: one EROFS filesystem, at its beginning.
pub fn image_disk(image: &ImageFiles, serial: String) -> Disk {
    Disk {
        files: open_files(std::iter::once(&image.fsmeta).chain(&image.layers)),
        read_only: true,
        serial,
    }
}

fn open_files<'a>(files: impl IntoIterator<Item = &'a ImageFile>) -> Vec<MachineFile> {
    files.into_iter().map(|file| file.file.clone()).collect()
}

fn region<'a>(files: impl IntoIterator<Item = &'a ImageFile>) -> PmemRegion {
    PmemRegion {
        files: open_files(files),
    }
}

/// Makes a region for each file; one for several files that are the same.
fn region_each<'a>(files: impl IntoIterator<Item = &'a ImageFile>) -> Vec<PmemRegion> {
    let mut seen = HashSet::new();
    let files = files.into_iter().filter(|file| seen.insert(file.uuid));
    files.map(|file| region([file])).collect()
}

fn on_pmem(uuid: [u8; 16], range: Option<Range>) -> Extent {
    Extent {
        device: Device::Pmem { uuid },
        range,
    }
}

fn on_disk(serial: &str, range: Option<Range>) -> Extent {
    Extent {
        device: Device::Disk {
            serial: serial.into(),
        },
        range,
    }
}

#[cfg(test)]
mod tests;
