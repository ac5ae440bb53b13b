//! Versions of what the guest was told, in a table in its memory.
//!
//! The guest's kernel (`kernel/patches/0002-fuse-versions-for-virtio-fs.patch`) names the table when it
//! begins. An answer may have a version in place of a time: what it tells is valid until the table has a
//! higher one in the same slot. So the guest asks for nothing that it knows, and knows nothing that has
//! changed.

use std::ffi::CStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use micabox_ground::lock;

/// Slots of the table, of eight bytes each, little endian (`FUSE_VERSIONS_SLOTS`).
pub(crate) const SLOTS: u16 = 4096;

/// What a slot stands for. Unrelated files may share one, and are then outdated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(u16);

impl Slot {
    fn of(number: u64) -> Self {
        // Less than 4,096.
        Self((number % u64::from(SLOTS)) as u16)
    }

    /// Returns the slot of a file's owner and mode.
    pub(crate) fn attributes(node: u64) -> Self {
        Self::of(node)
    }

    /// Returns the slot of what changes with a file's contents: its size, its times, its number of
    /// names.
    pub(crate) fn contents(node: u64) -> Self {
        Self::of(!node)
    }

    /// Returns the slot of an entry of a directory: the FNV-1a hash of its name, begun with the
    /// directory's number (`fuse_name_slot`).
    pub(crate) fn name(directory: u64, name: &CStr) -> Self {
        let hash = name.to_bytes().iter().fold(directory, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self::of(hash ^ (hash >> 32))
    }

    /// Returns the slot's place in the table.
    pub(crate) fn index(self) -> u16 {
        self.0
    }
}

/// The guest's memory, as far as the table goes.
pub(crate) trait Table: Send + Sync {
    /// Writes `version` to these slots of the table at this address of the guest; None: to all. What
    /// the guest has no memory for is left out.
    fn write(&self, address: u64, version: u64, slots: Option<&[Slot]>);
}

/// The versions of one guest.
pub(crate) struct Versions {
    table: Box<dyn Table>,
    /// The table's address, if the guest has one.
    address: Mutex<Option<u64>>,
    /// Whether there is an address: asked for by every request, without the lock.
    is_on: AtomicBool,
    latest: AtomicU64,
}

impl std::fmt::Debug for Versions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Versions").finish_non_exhaustive()
    }
}

impl Versions {
    /// Creates the versions of a guest that has not begun.
    pub(crate) fn new(table: Box<dyn Table>) -> Self {
        Self {
            table,
            address: Mutex::new(None),
            is_on: AtomicBool::new(false),
            latest: AtomicU64::new(1),
        }
    }

    /// Notes the table's address, or that there is none: then nothing is written any more.
    pub(crate) fn begin(&self, address: Option<u64>) {
        let mut current = lock(&self.address);
        *current = address;
        self.is_on.store(address.is_some(), Ordering::Release);
    }

    /// Returns whether the guest has a table.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Returns the version of what is looked up from now on.
    pub(crate) fn latest(&self) -> u64 {
        self.latest.load(Ordering::Acquire)
    }

    /// Outdates what was told of these slots; None: of all.
    pub(crate) fn outdate(&self, slots: Option<&[Slot]>) {
        let address = lock(&self.address);
        if let Some(address) = *address {
            let version = self.latest().wrapping_add(1);
            // First, so that what is looked up again is not outdated at once.
            self.latest.store(version, Ordering::Release);
            self.table.write(address, version, slots);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_kernel() {
        // Computed with the kernel's function, compiled by itself.
        assert_eq!(Slot::name(1, c"a"), Slot(800));
        assert_eq!(Slot::name(1_234_567, c"Cargo.toml"), Slot(625));
        assert_eq!(Slot::name(u64::MAX, c"\xc3\xa4\xff"), Slot(2689));
        assert_eq!(Slot::attributes(4097), Slot(1));
        assert_eq!(Slot::contents(1), Slot(4094));
    }
}
