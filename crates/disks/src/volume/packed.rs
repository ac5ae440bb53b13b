//! Volumes whose disk is packed. Packing holds the disk's lock for two moments only, at its begin and at its end, and
//! never waits for it; who uses a volume waits for these moments, which are under the lock of names.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Duration;

use micabox_error::Error;
use micabox_ground::Locked;
use micabox_ground::locked::Mode;
use micabox_image::store::{FilePacked, Packing, is_packed_file};
use micabox_state::Stamp;
use micabox_vmm::MachineFile;

use super::{RECORD, Volume, Volumes, disk};
use crate::packed::{Outcome, is_unused_for, note_use};

/// How exact times of files are, at worst: a change within so long of another one may have the same time.
const EXACT: Duration = Duration::from_millis(50);

/// How often a volume is unpacked for one use of it: another process may pack it again.
const MOST: usize = 10;

impl Volume {
    /// Returns whether its disk is packed.
    pub fn is_packed(&self) -> bool {
        is_packed_file(&self.disk())
    }

    /// Returns whether nothing used it for so long.
    pub(crate) fn is_unused_for(&self, time: Duration) -> bool {
        let (record, disk) = (self.directory.join(RECORD), self.disk());
        is_unused_for([&*record, &*disk], time)
    }

    /// Notes that it is used.
    pub(super) fn note_use(&self) {
        note_use(&self.directory.join(RECORD));
    }
}

impl Volumes<'_> {
    /// Opens and locks the disk as [`disk::lock`], which is unpacked before if it is packed. The caller does not have the
    /// lock of names.
    pub(super) fn lock_disk(
        &self,
        volume: &Volume,
        is_shared: bool,
    ) -> Result<Option<MachineFile>, Error> {
        let mut has_waited = false;
        for _ in 0..MOST {
            self.0.store().unpack_file(&volume.disk(), &mut |_, _| ())?;
            match disk::lock(volume, is_shared) {
                // Packing has the lock for moments only, and that of names as well. Its list may be there then.
                Ok(None) if !has_waited => {
                    drop(self.lock()?);
                    has_waited = true;
                }
                Err(_) if volume.is_packed() => {}
                locked => return locked,
            }
        }
        disk::lock(volume, is_shared)
    }

    /// Packs a volume's disk. What machines write meanwhile makes that in vain.
    pub(crate) fn pack(
        &self,
        name: &str,
        packing: &mut Packing<'_>,
        watch: &mut dyn FnMut(u64, u64),
    ) -> Result<Outcome, Error> {
        // It may have been removed meanwhile.
        let Ok(volume) = self.get(name) else {
            return Ok(Outcome::Nothing);
        };
        let path = volume.disk();
        let Ok(file) = File::options().read(true).write(true).open(&path) else {
            return Ok(Outcome::Nothing);
        };
        let stamp = {
            let (_, _names) = self.lock()?;
            let Some(_unused) = attempt(&file, &path)? else {
                return Ok(Outcome::InUse);
            };
            // While nothing can change it: every later change has another time.
            if !is_unused_for([&*path], EXACT) {
                thread::sleep(EXACT);
            }
            Stamp::of_file(&file).map_err(Error::state("reading", &path))?
        };
        let packed = match packing.write(&file, &path, watch)? {
            FilePacked::Chunks(packed) => packed,
            FilePacked::Incompressible => return Ok(Outcome::Incompressible),
            FilePacked::Changed => return Ok(Outcome::InUse),
        };
        let (_, _names) = self.lock()?;
        let Some(_unused) = attempt(&file, &path)? else {
            return Ok(Outcome::InUse);
        };
        match Stamp::of(&path) {
            Ok(now) if now == stamp => Outcome::of(packed, &path),
            Ok(_) => Ok(Outcome::InUse),
            Err(_) => Ok(Outcome::Nothing),
        }
    }

    /// Makes a volume's disk whole.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`]; [`Error::Store`].
    pub fn unpack(&self, name: &str, watch: &mut dyn FnMut(u64, u64)) -> Result<(), Error> {
        let volume = self.get(name)?;
        volume.note_use();
        self.0.store().unpack_file(&volume.disk(), watch)?;
        Ok(())
    }
}

/// Locks the disk, unless something uses it.
fn attempt(file: &File, path: &Path) -> Result<Option<Locked>, Error> {
    let file = file.try_clone().map_err(Error::state("locking", path))?;
    Locked::attempt(file, Mode::Exclusive).map_err(Error::state("locking", path))
}
