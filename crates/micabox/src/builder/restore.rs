//! Builders of sandboxes that are not fresh: from snapshots, and further starts.

use std::path::Path;

use micabox_image::Store;

use super::kind::{FromDisk, FromMemory, Restart};
use super::{Builder, Origin, Start};
use crate::{
    Base, Error, Record, Sandbox, SandboxRef, SavedMachine, Snapshot, Spec, Status, Upper, upper,
};

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
            directory: snapshot.directory.clone(),
            machine: snapshot.memory.clone(),
        };
        let start = Start::on(store, base);
        match &snapshot.memory {
            Some(machine) => Self::Memory(Builder::of(start.of_machine(origin, machine))),
            None => Self::Disk(Builder::of(Start {
                upper: Upper::Disk {
                    size: snapshot.size,
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

impl Start {
    /// Takes the settings that a copy of the machine must have as well.
    fn of_machine(self, origin: Origin, machine: &SavedMachine) -> Self {
        let SavedMachine {
            memory_mib,
            cpus,
            cpu_quota,
            disk_rate,
            upper,
            setup,
            spec,
            main: _,   // of `reattach`
            memory: _, // read from the origin when it starts
            base: _,
        } = machine;
        let Spec {
            command: _,  // of `reattach`
            hostname: _, // names one sandbox
            transport,
            root,
            init,
            stop_signal,
            network,
            vsock: _,                 // leads to one sandbox
            nested_virtualization: _, // such a machine is not saved
            require_limits,
            expiry: _,       // counts from a sandbox's own creation
            boot_timeout: _, // nothing boots
            backend: _,      // what can restore it, or none
            cold: _,         // nothing boots
            auto_remove: _,  // an option of each copy
        } = spec;
        Self {
            memory_mib: *memory_mib,
            cpus: Some(*cpus),
            cpu_quota: *cpu_quota,
            disk_rate: *disk_rate,
            upper: upper.clone(),
            setup: setup.clone(),
            transport: *transport,
            root: *root,
            init: *init,
            network: network.clone(),
            stop_signal: *stop_signal,
            require_limits: *require_limits,
            origin: Some(origin),
            ..self
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
        self.start.command = machine.map(|machine| machine.spec.command.clone());
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
        let can_start = self.record().can_start();
        let Record {
            id,
            name: _, // the record stays, with its name, labels and times
            base: _, // opened by `base`
            command: description,
            created: _,
            created_nanos: _,
            memory_mib,
            cpus,
            cpu_quota,
            disk_rate,
            transport: _, // of the last start; what was asked for is in the specification
            root: _,
            upper,
            setup,
            backend: _,
            spec,
            defaults: _,
            labels: _,
            published: _, // bound anew, from the network
            auto_remove: _,
            owner: _, // of the last start
            creator: _,
            machine: _,
            status,
        } = self.record().clone();
        let Some(spec) = spec.filter(|_| can_start) else {
            return Err(self.record().not_kept());
        };
        let Spec {
            command,
            hostname,
            transport,
            root,
            init,
            stop_signal,
            network,
            vsock,
            nested_virtualization,
            require_limits,
            expiry,
            boot_timeout,
            backend: backend_choice,
            cold,
            auto_remove,
        } = spec;
        Ok(Builder::of(Start {
            hostname,
            memory_mib,
            cpus: Some(cpus),
            cpu_quota,
            disk_rate,
            transport,
            root,
            init,
            is_patched: upper == Upper::Tmpfs && upper::patches(self.path()).exists(),
            upper,
            setup,
            command: Some(command),
            resumed: Some(id),
            is_first: status == Status::Created,
            auto_remove,
            backend_choice,
            cold,
            stop_signal,
            network,
            vsock,
            nested_virtualization,
            require_limits,
            expiry,
            boot_timeout,
            description,
            ..Start::on(self.sandboxes().store(), self.base()?)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use micabox_vmm::{BackendChoice, DiskRate};
    use micabox_wire::Init;

    use super::*;
    use crate::base::OpenDisk;
    use crate::plan::{Root, Transport};
    use crate::{Command, Expiry, Network};

    /// A start with no setting as it is by default.
    fn start(store: &Store) -> Start {
        Start {
            hostname: Some("web".into()),
            memory_mib: 77,
            cpus: Some(3),
            cpu_quota: Some(500),
            disk_rate: DiskRate {
                operations: Some(9),
                ..DiskRate::default()
            },
            transport: Transport::Blk,
            root: Root::Stacked,
            init: Init::FirstExec,
            upper: Upper::Disk { size: 64 << 20 },
            setup: crate::Setup {
                pids_limit: Some(50),
                ..crate::Setup::default()
            },
            command: Some(Command::new(["sleep", "9"])),
            auto_remove: false,
            stop_signal: Some(9),
            network: Network::None,
            vsock: Some("/run/box".into()),
            nested_virtualization: true,
            require_limits: true,
            expiry: Expiry {
                max_life: Some(Duration::from_secs(9)),
                ..Expiry::default()
            },
            boot_timeout: Some(Duration::from_secs(9)),
            backend_choice: BackendChoice::Kvm,
            cold: true,
            ..fresh(store)
        }
    }

    fn fresh(store: &Store) -> Start {
        let path = store.root().join("root.ext4");
        std::fs::write(&path, b"").unwrap();
        Start::on(store, Base::Disk(OpenDisk::of_any(&path, false)))
    }

    #[test]
    fn a_copy_has_the_settings_of_its_machine_and_not_those_of_one_sandbox() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let original = start(&store);
        let machine = SavedMachine {
            memory_mib: original.memory_mib,
            cpus: 3,
            cpu_quota: original.cpu_quota,
            disk_rate: original.disk_rate,
            upper: original.upper.clone(),
            setup: original.setup.clone(),
            spec: original.spec_of(Command::new(["sleep", "9"])),
            main: None,
            memory: None,
            base: None,
        };
        let origin = Origin {
            name: Some("moment".into()),
            directory: directory.path().to_owned(),
            machine: Some(machine.clone()),
        };
        let (copy, other) = (fresh(&store).of_machine(origin, &machine), fresh(&store));
        assert_eq!(copy.memory_mib, original.memory_mib);
        assert_eq!(copy.cpus, original.cpus);
        assert_eq!(copy.cpu_quota, original.cpu_quota);
        assert_eq!(copy.disk_rate, original.disk_rate);
        assert_eq!(copy.upper, original.upper);
        assert_eq!(copy.setup, original.setup);
        assert_eq!(copy.transport, original.transport);
        assert_eq!(copy.root, original.root);
        assert_eq!(copy.init, original.init);
        assert_eq!(copy.network, original.network);
        assert_eq!(copy.stop_signal, original.stop_signal);
        assert!(copy.require_limits);
        assert_eq!(copy.hostname, other.hostname);
        assert!(copy.command.is_none() && copy.vsock.is_none());
        assert_eq!(copy.expiry, other.expiry);
        assert_eq!(copy.boot_timeout, other.boot_timeout);
        assert_eq!(copy.backend_choice, other.backend_choice);
        assert_eq!(copy.auto_remove, other.auto_remove);
        assert!(!copy.cold && !copy.nested_virtualization);
    }
}
