//! What a sandbox without a kernel of its own has in place of disks, and what it can't have.

use micabox_vmm::Limits;

use super::Start;
use crate::lowers::Lowers;
use crate::plan::{IMAGE_SERIAL, Plan, Root, Transport};
use crate::{Base, Error, Upper};

impl Start {
    /// Refuses what would have the host's kernel mount a filesystem that is not of our making, or that the
    /// sandbox can change, and what there is no device for.
    pub(super) fn check_for_shared_kernel(&self) -> Result<(), Error> {
        let what = match () {
            () if matches!(self.base, Base::Disk(_)) => {
                "has no root disks: the host's kernel would mount a filesystem from elsewhere"
            }
            () if self.upper != Upper::Tmpfs => {
                "keeps changes in memory only (--upper tmpfs): the host's kernel would mount a filesystem \
                 that the sandbox can damage"
            }
            () if !self.setup.volumes().is_empty() => {
                "has no volumes: the host's kernel would mount a filesystem that a sandbox can damage"
            }
            () if self.has_patches() => "makes no changes before the start",
            () if self.setup.shares() > 0 => {
                "shares no folders of this machine: a mount of one does not give what is made in it to its \
                 user, as a machine's server does"
            }
            () if self.root == Root::Stacked => "has merged roots only (--root merged)",
            () if self.transport == Transport::Pmem => "maps no image as memory (--transport auto)",
            () if self.vsock.is_some() => "has no vsock",
            () if self.nested_virtualization => "has no processors that could be virtualised",
            () if self.network.is_some() => return Ok(micabox_vmm::host::check_network()?),
            () => return Ok(()),
        };
        let backend = "the host backend";
        Err(micabox_vmm::Error::Unsupported {
            backend,
            what: what.to_owned(),
        }
        .into())
    }

    /// Adds the trees of its image and of those that are mounted in it.
    pub(super) fn attach_trees(&self, plan: &mut Plan, limits: &Limits) -> Result<(), Error> {
        let Base::Image(image) = &self.base else {
            return Ok(());
        };
        let lowers = Lowers::of(&self.store)?;
        let first = lowers.hold(image, None)?;
        plan.add_tree(first.tree(IMAGE_SERIAL.to_owned()), limits)?;
        for (image, serial) in self.setup.images() {
            let image = self.store.image_by_digest(&image.parse_digest()?)?;
            let held = lowers.hold(&image, Some(&first))?;
            plan.add_tree(held.tree(serial), limits)?;
        }
        Ok(())
    }
}
