//! What a start needs before its machine starts: the plan of its devices, the saved machine or the template.

use micabox_disks::{Base, snapshot as memory};
use micabox_error::Error;
use micabox_parsers::Claim;
use micabox_spec::Upper;
use micabox_spec::network::Network;
use micabox_state::SavedMachine;
use micabox_vmm::Backend;
use tracing::debug;

use super::{Origin, Start};
use crate::GuestFiles;
use crate::plan::{self, Plan};
use crate::template::Template;

/// A machine's devices and the saved machine to restore, if there is one: every file is open and
/// checked.
pub(super) struct Planned {
    pub(super) plan: Plan,
    /// The lock of a root disk.
    pub(super) claim: Option<Claim>,
    pub(super) saved: Option<micabox_vmm::Snapshot>,
}

impl Start {
    /// Returns a start of a sandbox with the same machine, which has nothing else of this one.
    pub(super) fn bare(&self) -> Self {
        Self {
            name: None,
            spec: self.spec.bare(),
            shares: self.shares(),
            ..self.clone()
        }
    }

    /// Returns how many virtio-fs devices the machine has.
    fn shares(&self) -> usize {
        self.shares.max(self.spec.setup.shares())
    }

    /// Returns the same start, from a template.
    pub(super) fn with_template(&self, template: &Template, machine: SavedMachine) -> Self {
        Self {
            origin: Some(Origin {
                name: None,
                directory: template.directory().to_owned(),
                machine: Some(machine),
            }),
            ..self.clone()
        }
    }

    /// Plans the machine's devices, and opens and checks the files that it needs.
    pub(super) fn plan(&self, backend: &dyn Backend) -> Result<Planned, Error> {
        let saved = self.saved_machine(backend)?;
        let limits = backend.limits();
        if !limits.own_kernel {
            self.check_for_shared_kernel()?;
        }
        let (plan, claim) = plan::of_base(&self.base, &self.spec, &limits)?;
        debug!(
            backend = backend.name(),
            transport = %plan.transport,
            reason = plan.reason.as_deref(),
            root = %plan.root,
            regions = plan.pmem.len(),
            disks = plan.disks.len(),
            "planned the machine"
        );
        Ok(Planned { plan, claim, saved })
    }

    /// Returns the place of the template for machines like this one, if there can be one.
    pub(super) fn template(
        &self,
        plan: &Plan,
        guest: &GuestFiles,
        backend: &dyn Backend,
    ) -> Option<Template> {
        // The disk of one that was created without a start may have been written to.
        let is_fresh = self.resumed.is_none() || self.is_first && self.spec.upper == Upper::Tmpfs;
        let is_new = self.origin.is_none() && is_fresh;
        if self.spec.cold
            || self.spec.machine.nested_virtualization
            || !is_new
            || self.has_patches()
            // The overlay is in a template's machine, with its upper layer.
            || matches!(self.spec.upper, Upper::Folder { .. })
            || self.spec.setup.has_disks()
            || !backend.limits().snapshots
        {
            return None;
        }
        let settings = self.spec.in_template(self.cpus(backend), self.shares());
        let Base::Image(image) = &self.base else {
            return None;
        };
        Template::place(self.store.root(), image, plan, guest, &settings)
    }

    /// Checks that in-place changes and a root disk that is written to go together, without
    /// patches.
    pub(super) fn check_in_place(&self) -> Result<(), Error> {
        let is_in_place = self.base.disk().is_some_and(|disk| disk.in_place);
        check_in_place(is_in_place, &self.spec.upper, !self.patches.is_empty())
    }

    /// Opens the snapshot's machine, if there is one, and checks it and whether it can be restored
    /// with these settings.
    fn saved_machine(&self, backend: &dyn Backend) -> Result<Option<micabox_vmm::Snapshot>, Error> {
        let Some(Origin {
            name: Some(name),
            directory,
            machine: Some(machine),
        }) = &self.origin
        else {
            return Ok(None);
        };
        if !backend.limits().snapshots {
            let backend = backend.name();
            return Err(micabox_vmm::Error::NoSnapshots { backend }.into());
        }
        let differs = |problem| Error::SnapshotDiffers {
            name: name.clone(),
            problem,
        };
        let networks = [&machine.spec.network, &self.spec.network];
        match networks.map(Network::is_some).into() {
            (true, false) => return Err(differs("has a network, which can't be removed")),
            (false, true) => return Err(differs("has no network, and none can be added")),
            _ => {}
        }
        if self.spec.vsock.is_some() && machine.spec.vsock.is_none() {
            return Err(differs("has no sockets (vsock), and none can be added"));
        }
        if self.reattaches && machine.main().is_none() {
            return Err(Error::NothingRuns(name.clone()));
        }
        memory::open_unpacked(&self.store, name, directory, machine).map(Some)
    }
}

fn check_in_place(is_in_place: bool, upper: &Upper, has_patches: bool) -> Result<(), Error> {
    match (is_in_place, upper) {
        (false, Upper::InPlace) => Err(Error::NoPlace),
        (false, _) => Ok(()),
        (true, Upper::InPlace) if has_patches => {
            Err(Error::NotInPlace("a change before the start"))
        }
        (true, Upper::InPlace) => Ok(()),
        (true, _) => Err(Error::NotInPlace("an upper layer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_in_place_need_a_writable_root_disk() {
        let check = |is_in_place, upper| check_in_place(is_in_place, &upper, false);
        assert!(matches!(check(false, Upper::InPlace), Err(Error::NoPlace)));
        assert!(matches!(
            check(true, Upper::Tmpfs),
            Err(Error::NotInPlace(_))
        ));
        check(true, Upper::InPlace).unwrap();
        check(false, Upper::Tmpfs).unwrap();
        let patched = check_in_place(true, &Upper::InPlace, true);
        assert!(matches!(patched, Err(Error::NotInPlace(_))));
    }
}
