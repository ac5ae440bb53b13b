//! Plans the devices of a machine on what a sandbox is made from.

use micabox_disks::Base;
use micabox_error::Error;
use micabox_parsers::Claim;
use micabox_spec::{Root, Transport};

use super::Plan;

/// Plans the devices of a machine on this base. Returns the plan with the lock of a root disk,
/// which is on the very file that the machine gets.
pub fn of_base(
    base: &Base,
    transport: Transport,
    root: Root,
    limits: &micabox_vmm::Limits,
) -> Result<(Plan, Option<Claim>), Error> {
    match base {
        Base::Image(image) if root == Root::Stacked && !image.trim.is_empty() => {
            Err(Error::NotTrimmed("a stack of layers"))
        }
        Base::Image(_) if !limits.own_kernel => Ok((Plan::of_tree(), None)),
        Base::Image(image) => {
            if limits.public_regions && transport != Transport::Blk {
                // QEMU opens the files of regions again, by their paths.
                micabox_holders::make_whole(image)?;
            }
            let files = micabox_holders::open(image)?;
            Ok((Plan::new(&files, transport, root, limits)?, None))
        }
        Base::Disk(disk) => {
            let (claim, file) = disk.claim()?;
            let plan = Plan::of_disk(disk.disk(), file, transport, limits)?;
            Ok((plan, Some(claim)))
        }
    }
}
