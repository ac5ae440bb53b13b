//! Snapshots whose disk or memory is packed. A process that uses a file of one has it open: whether that is packed
//! meanwhile or not, it is the same file. A lock keeps what is in use from being packed, as that would free nothing.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use micabox_error::Error;
use micabox_ground::Locked;
use micabox_ground::locked::Mode;
use micabox_image::Store;
use micabox_image::store::{FilePacked, Packing, is_packed_file};
use micabox_state::{Sandboxes, SavedMachine, Stamp, Written};

use super::memory::{digest, open_checked};
use super::names::MEMORY;
use super::{DISK, RECORD, Snapshot, Snapshots, write_record};
use crate::packed::{Outcome, is_unused_for, note_use};

/// How often a file is unpacked for one use of it: another process may pack it again.
const MOST: usize = 10;

impl Snapshot {
    /// Returns whether its disk or its memory is packed.
    pub fn is_packed(&self) -> bool {
        let mut files = [DISK, MEMORY].into_iter();
        files.any(|file| is_packed_file(&self.directory.join(file)))
    }

    /// Returns whether nothing used it for so long.
    pub(crate) fn is_unused_for(&self, time: Duration) -> bool {
        is_unused_for([&*self.directory.join(RECORD)], time)
    }
}

impl Snapshots<'_> {
    /// Packs the disk and the memory of a snapshot. Returns what became of each.
    pub(crate) fn pack(
        &self,
        name: &str,
        packing: &mut Packing<'_>,
        watch: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<Outcome>, Error> {
        // It may have been removed meanwhile.
        let Ok(snapshot) = self.get(name) else {
            return Ok(Vec::new());
        };
        if snapshot.ephemeral {
            return Ok(Vec::new());
        }
        let mut outcomes = Vec::new();
        for part in [DISK, MEMORY] {
            outcomes.push(self.pack_part(&snapshot, part, packing, watch)?);
        }
        Ok(outcomes)
    }

    fn pack_part(
        &self,
        snapshot: &Snapshot,
        part: &str,
        packing: &mut Packing<'_>,
        watch: &mut dyn FnMut(u64, u64),
    ) -> Result<Outcome, Error> {
        let path = snapshot.directory.join(part);
        let failed = || Error::state("reading", &path);
        let Ok(file) = File::options().read(true).write(true).open(&path) else {
            return Ok(Outcome::Nothing);
        };
        let attempt = || {
            let file = file.try_clone().map_err(failed())?;
            Locked::attempt(file, Mode::Exclusive).map_err(failed())
        };
        if attempt()?.is_none() {
            return Ok(Outcome::InUse);
        }
        let stamp = Stamp::of_file(&file).map_err(failed())?;
        let machine = snapshot.memory.as_ref();
        if part == MEMORY
            && let Some(expected) = machine.and_then(SavedMachine::written)
            && expected.stamp != stamp
            && digest(&file).map_err(failed())? != expected.sha256
        {
            return Ok(Outcome::Damaged);
        }
        let packed = match packing.write(&file, &path, watch)? {
            FilePacked::Chunks(packed) => packed,
            FilePacked::Incompressible => return Ok(Outcome::Incompressible),
            FilePacked::Changed => return Ok(Outcome::Nothing),
        };
        // While nothing is removed or replaced.
        let _names = self.0.directory().lock()?;
        let is_same = Stamp::of(&path).is_ok_and(|now| now == stamp);
        if !is_same || self.get(&snapshot.name).is_err() {
            return Ok(Outcome::Nothing);
        }
        let Some(_unused) = attempt()? else {
            return Ok(Outcome::InUse);
        };
        Outcome::of(packed, &path)
    }

    /// Makes a snapshot's files whole.
    ///
    /// # Errors
    /// [`Error::NoSuchSnapshot`]; [`Error::Store`], [`Error::State`].
    pub fn unpack(&self, name: &str, watch: &mut dyn FnMut(u64, u64)) -> Result<(), Error> {
        let directory = self.get(name)?.directory;
        let store = self.0.store();
        note_use(&directory.join(RECORD));
        store.unpack_file(&directory.join(DISK), watch)?;
        unpack_memory(store, &directory, watch).map(drop)
    }
}

/// Opens the disk in a snapshot's directory, which is unpacked before if it is packed. It stays as it is for as long as it
/// is open.
///
/// # Errors
/// [`Error::Store`].
pub fn open_disk(store: &Store, directory: &Path) -> Result<File, Error> {
    note_use(&directory.join(RECORD));
    let disk = store.open_file(&directory.join(DISK))?;
    // If that fails, it is being packed, and this file is the one that was.
    let _ = disk.try_lock_shared();
    Ok(disk)
}

/// Opens the machine of the snapshot `name` in a directory as [`open_checked`], after its memory is unpacked if it is
/// packed.
///
/// # Errors
/// Those of [`open_checked`]; [`Error::Store`].
pub fn open_unpacked(
    store: &Store,
    name: &str,
    directory: &Path,
    machine: &SavedMachine,
) -> Result<micabox_vmm::Snapshot, Error> {
    note_use(&directory.join(RECORD));
    let mut attempts = 0;
    loop {
        let unpacked = unpack_memory(store, directory, &mut |_, _| ())?;
        let opened = open_checked(store, name, directory, unpacked.as_ref().unwrap_or(machine));
        attempts += 1;
        if opened.is_err() && is_packed_file(&directory.join(MEMORY)) && attempts < MOST {
            continue;
        }
        let opened = opened?;
        // For as long as a machine has it mapped. If that fails, it is being packed.
        let _ = opened.memory.try_lock_shared();
        return Ok(opened);
    }
}

/// Unpacks the memory in a snapshot's directory, if it is packed, and notes which file it is now: what is in the record of
/// its bytes holds for this file, as each chunk was checked. Returns what the record has then.
fn unpack_memory(
    store: &Store,
    directory: &Path,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Option<SavedMachine>, Error> {
    let path = directory.join(MEMORY);
    if !is_packed_file(&path) || !store.unpack_file(&path, watch)? {
        return Ok(None);
    }
    let sandboxes = Sandboxes::open(store)?;
    let _names = sandboxes.directory().lock()?;
    let prefix = |name: &str| name.strip_prefix(super::PREFIX).map(str::to_owned);
    let name = directory
        .file_name()
        .and_then(|name| prefix(name.to_str()?));
    let Ok(mut snapshot) = Snapshots(&sandboxes).get(&name.unwrap_or_default()) else {
        return Ok(None);
    };
    let failed = Error::state("writing", directory);
    let machine = snapshot.memory.as_mut();
    if let Some(machine) = machine
        && let Some(written) = machine.written()
    {
        let written = Written {
            sha256: written.sha256.clone(),
            stamp: Stamp::of(&path).map_err(Error::state("reading", &path))?,
        };
        machine.set_written(written);
        write_record(&snapshot).map_err(failed)?;
    }
    Ok(snapshot.memory)
}
