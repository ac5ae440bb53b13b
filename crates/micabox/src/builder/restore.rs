//! Builders of sandboxes that are not fresh: from snapshots, and further starts.

use std::path::Path;

use micabox_disks::{Base, Snapshot, upper};
use micabox_error::Error;
use micabox_image::Store;
use micabox_spec::{Spec, Upper};
use micabox_start::{Origin, Start};
use micabox_state::Status;

use super::Builder;
use super::kind::{FromDisk, FromMemory, Restart};
use crate::{Sandbox, SandboxRef};

/// Builder for a sandbox from a snapshot. Only what may differ in a copy can be set.
#[derive(Clone)]
pub enum Restore {
    /// The snapshot is of a disk: the machine boots, with a copy of the disk.
    Disk(Builder<FromDisk>),
    /// The snapshot has a machine's memory: the machine continues where it was, with the same
    /// memory size, processors and devices.
    Memory(Builder<FromMemory>),
}

impl Restore {
    /// Begins a sandbox from a snapshot, on the base that the snapshot's sandbox had.
    ///
    /// # Errors
    /// [`Error::Store`] if the image is no longer in the store; [`Error::RootDisk`] if the root
    /// disk has changed or can't be used; [`Error::RootDiskUnnamed`] if the snapshot was imported
    /// and has a root disk.
    pub fn new(store: &Store, snapshot: &Snapshot) -> Result<Self, Error> {
        Ok(Self::on(
            store,
            Base::of_snapshot(store, snapshot)?,
            snapshot,
        ))
    }

    /// Begins a sandbox from a snapshot with a root disk, with the file at `path` as that disk. Its
    /// format, size and UUID must be the same.
    ///
    /// # Errors
    /// [`Error::RootDisk`] if it is another filesystem; [`Error::SnapshotDiffers`] if the snapshot
    /// has no root disk, or has memory, which can be restored only with the original file.
    pub fn on_root_disk(store: &Store, snapshot: &Snapshot, path: &Path) -> Result<Self, Error> {
        let base = Base::of_snapshot_on(snapshot, path)?;
        Ok(Self::on(store, base, snapshot))
    }

    fn on(store: &Store, base: Base, snapshot: &Snapshot) -> Self {
        let origin = Origin {
            name: Some(snapshot.name.clone()),
            directory: snapshot.directory().to_owned(),
            machine: snapshot.memory.clone(),
        };
        let start = Start::on(store, base);
        match &snapshot.memory {
            Some(machine) => Self::Memory(Builder::of(Start {
                spec: machine.spec.copied(),
                origin: Some(origin),
                ..start
            })),
            None => Self::Disk(Builder::of(Start {
                spec: Spec {
                    upper: Upper::Disk {
                        size: snapshot.size,
                    },
                    ..Spec::default()
                },
                origin: Some(origin),
                ..start
            })),
        }
    }

    /// Starts the sandbox as it is; see [`Builder::create`].
    ///
    /// # Errors
    /// As [`Builder::create`].
    pub fn create(self) -> Result<Sandbox, Error> {
        match self {
            Self::Disk(builder) => builder.create(),
            Self::Memory(builder) => builder.create(),
        }
    }
}

impl Builder<FromMemory> {
    /// Reattaches the first command of the snapshot's machine as this sandbox's
    /// ([`Sandbox::reattach`]). [`Builder::create`] fails with [`Error::NothingRuns`] if there is
    /// none.
    #[must_use]
    pub fn reattach(mut self) -> Self {
        self.start.reattaches = true;
        let machine = self.start.machine();
        self.start.spec.command = machine.and_then(|machine| machine.spec.command.clone());
        self
    }
}

impl SandboxRef {
    /// Begins the first start of a sandbox that was only created, or another start of one that has
    /// kept its disk; with the settings that it was made with.
    ///
    /// # Errors
    /// [`Error::NotKept`] or [`Error::NoDiskOnHost`] if the sandbox has ended and kept no changes, or has no first command on
    /// record;
    /// those of [`SandboxRef::base`].
    pub fn restart(&self) -> Result<Builder<Restart>, Error> {
        let record = self.record();
        if !record.can_restart() {
            return Err(record.not_kept());
        }
        let spec = record.spec.clone();
        Ok(Builder::of(Start {
            description: record.command.clone(),
            is_patched: spec.upper == Upper::Tmpfs && upper::patches(self.path()).exists(),
            spec,
            resumed: Some(record.id.clone()),
            is_first: record.status == Status::Created,
            ..Start::on(self.sandboxes().store(), self.base()?)
        }))
    }
}
