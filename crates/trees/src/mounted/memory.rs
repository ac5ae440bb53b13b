//! Filesystems in memory, which the process that mounts them serves itself: their records, so that they are
//! listed and unmounted as trees are.

use std::io::Write;

use micabox_error::Error;
use micabox_ground::clock;
use micabox_mount::{Manner, Place};
use micabox_state::ProcessId;

use super::record::boot;
use super::start::{Claimed, with_device};
use super::{MountRecord, Mounts, ServedBy, TreeKind};

/// The record of a filesystem in memory that this process serves. It is removed with this.
#[derive(Debug)]
pub struct MemoryRecord(Claimed);

impl Mounts {
    /// Records a filesystem in memory that this process has mounted; `source` is what it was filled from.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn record_memory(&self, place: &Place, source: &str) -> Result<MemoryRecord, Error> {
        let claimed = self.claim()?;
        let mut record = MountRecord {
            place: place.path().to_owned(),
            source: source.to_owned(),
            kind: TreeKind::Memory,
            by: ServedBy::Fuse,
            is_writable: true,
            upper: None,
            created: clock::now_as_parts().0,
            base: None,
            process: ProcessId::own(),
            helper: place.manner() == Manner::Helper,
            boot: boot(),
            device: None,
        };
        with_device(&mut record)
            .and_then(|()| record.write(&claimed.path))
            .map_err(Error::state("writing", &claimed.path))?;
        Ok(MemoryRecord(claimed))
    }
}

impl MemoryRecord {
    /// Leaves what could not be done for the process that unmounted it ([`Mounts::unmount`]).
    pub fn leave(self, problem: &str) {
        if let Some(lock) = &self.0.lock {
            // If there is no room for it, nothing says so.
            let _ = lock.file().write_all(problem.as_bytes());
        }
    }
}
