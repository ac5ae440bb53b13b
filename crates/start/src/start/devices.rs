//! The devices of a sandbox's machine beside its root: the disk for changes, mounted images, volumes.

use std::path::Path;

use micabox_disks::volume::Use;
use micabox_disks::{Volumes, digest_of};
use micabox_error::Error;
use micabox_spec::Upper;
use micabox_state::Sandboxes;
use micabox_vmm::{Disk, Limits, MachineFile};

use super::Start;
use crate::plan::{Plan, image_disk, readers};

impl Start {
    /// Adds a disk to the plan: the disk for changes, or the layer of patches of a sandbox whose
    /// changes are in memory.
    pub(super) fn attach_upper(
        &self,
        plan: &mut Plan,
        directory: &Path,
        limits: &Limits,
    ) -> Result<(), Error> {
        // A sandbox that exists has its disk already.
        let made = match self.resumed {
            None => self.make_upper(directory)?,
            Some(_) => self.upper_file(directory),
        };
        let Some((path, serial)) = made else {
            return Ok(());
        };
        let read_only = self.spec.upper == Upper::Tmpfs;
        let file = if read_only {
            MachineFile::open(&path)?
        } else {
            MachineFile::open_for_writing(&path)?
        };
        let disk = Disk {
            files: vec![file],
            read_only,
            serial: serial.into(),
        };
        Ok(plan.add_disk(disk, limits)?)
    }

    /// Adds the disks of mounted images and volumes to the plan. The volumes' files hold their
    /// locks.
    pub(super) fn attach_disks(&self, plan: &mut Plan, limits: &Limits) -> Result<(), Error> {
        for (image, serial) in self.spec.setup.images() {
            let image = self.store.image_by_digest(&digest_of(image)?)?;
            let files = micabox_holders::open(&image, readers(limits))?;
            let disk = image_disk(&files, serial);
            plan.add_disk(disk, limits)?;
        }
        let volumes = self.spec.setup.volumes();
        if volumes.is_empty() {
            return Ok(());
        }
        let sandboxes = Sandboxes::open(&self.store)?;
        for used in volumes {
            let usage = Use {
                target: used.target.as_bytes(),
                read_only: used.read_only,
                no_copy: used.source.no_copy,
            };
            let file = Volumes(&sandboxes).attach(&used.source.name, &self.base, usage)?;
            let disk = Disk {
                files: vec![file],
                read_only: used.read_only,
                serial: used.serial,
            };
            plan.add_disk(disk, limits)?;
        }
        Ok(())
    }
}
