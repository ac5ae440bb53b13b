//! Snapshots of sandboxes: how they are made, found, and taken elsewhere.

use std::io::{Read, Write};

use micabox_disks::{
    Arriving, Departing, Ephemeral, Landings, NewSnapshot, Place, Snapshot, Snapshots,
};
use micabox_error::Error;
use micabox_image::Reference;
use micabox_parsers::Notes;

use crate::builder::FromMemory;
use crate::{Builder, Restore, SandboxRef, Sandboxes};

/// An ephemeral snapshot, removed when it is dropped.
#[derive(Debug)]
pub struct EphemeralSnapshot {
    ephemeral: Ephemeral,
    sandboxes: Sandboxes,
}

impl EphemeralSnapshot {
    /// Returns the snapshot.
    pub fn snapshot(&self) -> &Snapshot {
        self.ephemeral.snapshot()
    }

    /// Begins a copy of the sandbox, which continues where the sandbox was.
    ///
    /// # Errors
    /// As [`Restore::new`].
    pub fn restore(&self) -> Result<Builder<FromMemory>, Error> {
        let snapshot = self.snapshot();
        match Restore::new(self.sandboxes.store(), snapshot)? {
            Restore::Memory(builder) => Ok(builder),
            Restore::Disk(_) => Err(Error::NotRunning(snapshot.sandbox.clone())),
        }
    }
}

impl SandboxRef {
    /// Copies the sandbox's disk at one moment; see [`SandboxRef::frozen_disk`].
    ///
    /// # Errors
    /// [`Error::SnapshotExists`], [`Error::BadSnapshotName`], and those of
    /// [`SandboxRef::frozen_disk`].
    pub fn snapshot(&self, new: impl Into<NewSnapshot>) -> Result<(Snapshot, Notes), Error> {
        Snapshots(self.sandboxes().as_ref()).copy_disk(self.record(), new.into())
    }

    /// Saves the running sandbox at one moment: its memory, its processes, and its disk if it has
    /// one. The sandbox is frozen meanwhile. The snapshot is synced to the host's disk and gets a
    /// digest, so that any damage is noticed.
    ///
    /// # Errors
    /// [`Error::SnapshotExists`], [`Error::BadSnapshotName`], [`Error::NotRunning`]; [`Error::NotSaved`];
    /// [`Error::Machine`] if its machine does not run on KVM.
    pub fn snapshot_with_memory(&self, new: impl Into<NewSnapshot>) -> Result<Snapshot, Error> {
        Snapshots(self.sandboxes().as_ref()).save(self.id(), new.into())
    }

    /// Saves the running sandbox as [`SandboxRef::snapshot_with_memory`], to be copied right away
    /// ([`EphemeralSnapshot::restore`]). The snapshot is removed when the result is dropped, or soon after this process
    /// ends.
    ///
    /// # Errors
    /// [`Error::NotRunning`], [`Error::NotSaved`]; [`Error::Machine`] if its machine does not run on KVM.
    pub fn ephemeral_snapshot(&self) -> Result<EphemeralSnapshot, Error> {
        Ok(EphemeralSnapshot {
            ephemeral: Snapshots(self.sandboxes().as_ref()).ephemeral(self.id())?,
            sandboxes: self.sandboxes().clone(),
        })
    }
}

impl Sandboxes {
    /// Returns all snapshots, by name. Removes unfinished ones that killed processes left.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        Snapshots(self.as_ref()).list()
    }

    /// Removes what pulls of snapshots left that were killed, from which later ones would go on.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn discard_left_snapshots(&self) -> Result<(), Error> {
        Snapshots(self.as_ref()).discard_left()
    }

    /// Returns the snapshot of this name.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`].
    pub fn snapshot(&self, name: &str) -> Result<Snapshot, Error> {
        Snapshots(self.as_ref()).get(name)
    }

    /// Removes a snapshot. Sandboxes that were started from it have their own copies.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`], [`Error::State`].
    pub fn remove_snapshot(&self, name: &str) -> Result<(), Error> {
        Snapshots(self.as_ref()).remove(name)
    }

    /// Writes a snapshot as one file, with a digest at its end. The image is not included.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`], [`Error::HasMemory`]; [`Error::System`].
    pub fn export_snapshot(&self, name: &str, to: &mut dyn Write) -> Result<(), Error> {
        Snapshots(self.as_ref()).export(name, to)
    }

    /// Makes a snapshot of what [`Sandboxes::export_snapshot`] wrote, under its own name or another
    /// one. Its image must be in the store. The path of a root disk is not taken from `from`, which
    /// could name any file: see [`Base::of_snapshot_on`](crate::Base::of_snapshot_on).
    ///
    /// # Errors
    /// [`Error::SnapshotExists`]; [`Error::Store`] without the image; [`Error::System`] if `from`
    /// fails, is not such a file, or does not have the digest at its end.
    pub fn import_snapshot(
        &self,
        name: Option<&str>,
        from: &mut dyn Read,
    ) -> Result<(Snapshot, Notes), Error> {
        Snapshots(self.as_ref()).import(name, from)
    }

    /// Reads what goes to a registry of a snapshot.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`]; [`Error::SnapshotStays`] if it has something that is on this machine only;
    /// [`Error::DamagedSnapshot`].
    pub fn departing_snapshot(&self, name: &str) -> Result<Departing, Error> {
        Snapshots(self.as_ref()).departing(name)
    }

    /// Makes the snapshot `name` of one that a registry has at `place`. `image` is the name of its image, which is in the
    /// store. `fetch` fills its files, each byte of which is compared. A snapshot that was pulled by the
    /// same name is replaced. With `is_lazy`, only the map is fetched of its memory now.
    ///
    /// # Errors
    /// [`Error::SnapshotExists`], [`Error::BadSnapshotName`]; [`Error::SnapshotRefused`] if a file is another one than
    /// its document says; those of `fetch`.
    pub fn arrived_snapshot<E: From<Error>>(
        &self,
        arriving: Arriving,
        name: &str,
        image: Option<&Reference>,
        place: Place,
        is_lazy: bool,
        fetch: impl FnOnce(Landings) -> Result<(), E>,
    ) -> Result<(Snapshot, Notes), E> {
        Snapshots(self.as_ref()).arrive(arriving, name, image, place, is_lazy, fetch)
    }

    /// Fetches the rest of a snapshot's memory, if only a part of that is here ([`Snapshot::memory_part`]). `watch` is
    /// called with the bytes that are here and those of all, and returns whether to continue. Returns whether the memory
    /// is whole now: it is not if `watch` has ended it, or if the snapshot was removed meanwhile.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`]; [`Error::SnapshotIncomplete`]; [`Error::SnapshotRefused`] if the whole is not what the
    /// snapshot's config says.
    pub fn complete_snapshot(
        &self,
        name: &str,
        watch: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<bool, Error> {
        Snapshots(self.as_ref()).complete(name, watch)
    }

    /// Starts the process that serves a snapshot's memory to machines, if only a part of that is here. A start does so
    /// otherwise, and fetches the rest first where there can be no such process.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`]; [`Error::HolderStuck`]; [`Error::NotServed`], as without FUSE.
    pub fn serve_snapshot(&self, name: &str) -> Result<(), Error> {
        Snapshots(self.as_ref()).serve(name)
    }

    /// Waits until no process makes a snapshot of this name.
    pub fn wait_for_snapshot(&self, name: &str) {
        Snapshots(self.as_ref()).wait_until_made(name);
    }

    /// Notes that a registry has a snapshot that was made at `created`, and keeps the maps of its disk and of its memory.
    /// Does nothing if another one has its name now.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`], [`Error::State`].
    pub fn note_snapshot_place(
        &self,
        name: &str,
        created: i64,
        place: Place,
        maps: [Option<Vec<u8>>; 2],
    ) -> Result<(), Error> {
        Snapshots(self.as_ref()).note_place(name, created, place, maps)
    }
}
