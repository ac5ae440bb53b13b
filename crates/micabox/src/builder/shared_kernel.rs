//! What a sandbox without a kernel of its own can't have.

use super::Start;
use crate::plan::{Root, Transport};
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
            () => return Ok(()),
        };
        let backend = "the host backend";
        Err(micabox_vmm::Error::Unsupported {
            backend,
            what: what.to_owned(),
        }
        .into())
    }
}
