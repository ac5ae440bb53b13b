//! An image of which the guest checks each block that it reads (dm-verity): its disk, and the disk's hash tree as another
//! one. Both are read-only files of the host, and what the guest knows of them before it reads is the root digest.

use micabox_error::Error;
use micabox_holders::ImageFiles;
use micabox_image::store::DiskTree;
use micabox_spec::{Root, Transport};
use micabox_vmm::{Disk, Limits, MachineFile};
use micabox_wire::{Device, Extent};

use super::{IMAGE_SERIAL, Plan};

/// Serial number of the disk that holds the hash tree.
pub const TREE_SERIAL: &str = "verity";

/// Refuses what the guest could not check.
pub(super) fn check(transport: Transport, root: Root) -> Result<(), Error> {
    match (transport, root) {
        (Transport::Pmem, _) => Err(Error::NotChecked("an image that is mapped as memory")),
        (_, Root::Stacked) => Err(Error::NotChecked("a stack of layers")),
        (Transport::Auto | Transport::Blk, Root::Merged) => Ok(()),
    }
}

/// Plans the devices for `image`, whose disk has `tree`, on a backend with `limits`.
pub(super) fn plan(image: &ImageFiles, tree: &DiskTree, limits: &Limits) -> Result<Plan, Error> {
    let mut plan = Plan::new(image, Transport::Blk, Root::Merged, limits)?;
    plan.reason = Some("the guest checks what it reads".to_owned());
    for lower in &mut plan.lowers {
        lower.image = Extent {
            device: Device::Verity {
                serial: IMAGE_SERIAL.into(),
                tree: TREE_SERIAL.into(),
                blocks: tree.blocks,
                root: *tree.root.as_bytes(),
            },
            range: None,
        };
    }
    let disk = Disk {
        files: vec![MachineFile::open(&tree.path)?],
        read_only: true,
        serial: TREE_SERIAL.into(),
    };
    plan.add_disk(disk, limits)?;
    Ok(plan)
}
