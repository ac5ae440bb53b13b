//! Plans the devices of a machine on what a sandbox is made from.

use micabox_disks::Base;
use micabox_error::Error;
use micabox_holders::{ImageFiles, Readers};
use micabox_image::store::Image;
use micabox_parsers::Claim;
use micabox_spec::{Root, Spec, Transport};
use micabox_vmm::Limits;

use super::{Plan, checked};

/// Returns who reads the files of a backend's machines.
pub fn readers(limits: &Limits) -> Readers {
    if limits.parts {
        Readers::OfParts
    } else {
        Readers::OfFiles
    }
}

/// Opens an image, and chooses the transport where its layers are not whole. They reach a region by userfaultfd, or by FUSE
/// where the host does not permit that. Where there is neither, a disk asks for them. Returns the reason too, unless the
/// transport was requested.
fn open(
    image: &Image,
    transport: Transport,
    limits: &Limits,
) -> Result<(ImageFiles, Transport, Option<String>), Error> {
    let files = micabox_holders::open(image, readers(limits))?;
    if files.are_readable() || transport == Transport::Blk {
        return Ok((files, transport, None));
    }
    let Err(lack) = micabox_vmm::userfaultfd() else {
        return Ok((files, transport, None));
    };
    if transport == Transport::Pmem {
        // The machine must be like another one, or one that was asked for.
        micabox_holders::make_whole(image)?;
        let files = micabox_holders::open(image, readers(limits))?;
        return Ok((files, transport, None));
    }
    let reason = format!(
        "its layers are not all here, and this host has neither FUSE nor userfaultfd ({lack})"
    );
    Ok((files, Transport::Blk, Some(reason)))
}

/// Plans the devices of a machine on this base, with the transport and the root that its settings ask for. Returns the
/// plan with the lock of a root disk, which is on the very file that the machine gets.
pub fn of_base(base: &Base, spec: &Spec, limits: &Limits) -> Result<(Plan, Option<Claim>), Error> {
    let (transport, root) = (spec.transport, spec.root);
    match base {
        Base::Image(image) if root == Root::Stacked && !image.trim.is_empty() => {
            Err(Error::NotTrimmed("a stack of layers"))
        }
        Base::Image(_) if !limits.own_kernel => Ok((Plan::of_tree(), None)),
        Base::Image(image) if spec.verity => {
            checked::check(transport, root)?;
            if image.is_lazy() {
                // The tree is over all of it.
                micabox_holders::make_whole(image)?;
            }
            let tree = image.store.disk_tree(image)?;
            let files = micabox_holders::open(image, readers(limits))?;
            Ok((checked::plan(&files, &tree, limits)?, None))
        }
        Base::Image(image) => {
            if limits.public_regions && transport != Transport::Blk {
                // QEMU opens the files of regions again, by their paths.
                micabox_holders::make_whole(image)?;
            }
            let (files, transport, reason) = open(image, transport, limits)?;
            let plan = Plan::new(&files, transport, root, limits)?;
            let reason = reason.or(plan.reason);
            Ok((Plan { reason, ..plan }, None))
        }
        Base::Disk(_) if spec.verity => Err(Error::NotChecked("a root disk")),
        Base::Disk(disk) => {
            let (claim, file) = disk.claim()?;
            let plan = Plan::of_disk(disk.disk(), file, transport, limits)?;
            Ok((plan, Some(claim)))
        }
    }
}
