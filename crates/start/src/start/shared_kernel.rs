//! What a sandbox without a kernel of its own has in place of disks, and what it can't have.

use std::panic::resume_unwind;

use micabox_disks::{Base, digest_of};
use micabox_error::Error;
use micabox_image::store::Image;
use micabox_spec::{ImageName, Root, Transport, Upper};
use micabox_trees::lowers;
use micabox_vmm::{Limits, Tree};

use super::Start;
use crate::plan::IMAGE_SERIAL;

impl Start {
    /// Refuses what would have the host's kernel mount a filesystem that is not of our making, or that the
    /// sandbox can change, and what there is no device for.
    pub(super) fn check_for_shared_kernel(&self) -> Result<(), Error> {
        let what = match () {
            () if matches!(self.base, Base::Disk(_)) => {
                "has no root disks: the host's kernel would mount a filesystem from elsewhere"
            }
            () if self.spec.upper != Upper::Tmpfs => {
                "keeps changes in memory only (--upper tmpfs): the host's kernel would mount a filesystem \
                 that the sandbox can damage"
            }
            () if !self.spec.setup.volumes().is_empty() => {
                "has no volumes: the host's kernel would mount a filesystem that a sandbox can damage"
            }
            () if self.has_patches() => "makes no changes before the start",
            () if self.spec.setup.shares() > 0 => {
                "shares no folders of this machine: a mount of one does not give what is made in it to its \
                 user, as a machine's server does"
            }
            () if self.spec.root == Root::Stacked => "has merged roots only (--root merged)",
            () if self.spec.transport == Transport::Pmem => {
                "maps no image as memory (--transport auto)"
            }
            () if self.spec.verity => {
                "checks nothing of what it reads: there is no disk (--verity)"
            }
            () if self.spec.vsock.is_some() => "has no vsock",
            () if self.spec.machine.nested_virtualization => {
                "has no processors that could be virtualised"
            }
            () if self.spec.network.is_some() => return Ok(micabox_vmm::host::check_network()?),
            () => return Ok(()),
        };
        let backend = "the host backend";
        Err(micabox_vmm::Error::Unsupported {
            backend,
            what: what.to_owned(),
        }
        .into())
    }

    /// Returns the trees of its image and of those that are mounted in it; none where the machine's kernel is
    /// its own. A holder may have to start, so that `meanwhile` runs beside it.
    pub(super) fn hold_trees<T>(
        &self,
        limits: &Limits,
        meanwhile: impl FnOnce() -> T,
    ) -> (T, Result<Vec<Tree>, Error>) {
        let Base::Image(image) = &self.base else {
            return (meanwhile(), Ok(Vec::new()));
        };
        if limits.own_kernel {
            return (meanwhile(), Ok(Vec::new()));
        }
        let others = self.spec.setup.images();
        std::thread::scope(|scope| {
            let trees = scope.spawn(|| hold(image, others));
            let done = meanwhile();
            let trees = trees.join();
            (done, trees.unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }
}

/// Holds an image's tree, and others that are seen beside it under their serial numbers.
fn hold(image: &Image, others: Vec<(&ImageName, String)>) -> Result<Vec<Tree>, Error> {
    let first = lowers::hold(image, None)?;
    let mut trees = vec![first.tree(IMAGE_SERIAL.to_owned())];
    for (other, serial) in others {
        let other = image.store.image_by_digest(&digest_of(other)?)?;
        trees.push(lowers::hold(&other, Some(&first))?.tree(serial));
    }
    Ok(trees)
}
