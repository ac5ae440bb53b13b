//! How much a filesystem holds, and how much it may hold.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use crate::Result;

/// Most that a filesystem may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of contents, in whole pages of 4 KiB; of extended attributes and of links' targets.
    pub bytes: u64,
    /// Inodes, and names of a file beyond its first.
    pub inodes: u64,
}

/// What a filesystem holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// As [`Limits::bytes`].
    pub bytes: u64,
    /// As [`Limits::inodes`].
    pub inodes: u64,
}

/// The limits, and what is taken of them.
#[derive(Debug)]
pub(crate) struct Room {
    limits: Limits,
    bytes: AtomicU64,
    inodes: AtomicU64,
    /// Most bytes since [`Room::has_shrunk`] was true.
    highest: AtomicU64,
}

impl Room {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            bytes: AtomicU64::new(0),
            inodes: AtomicU64::new(0),
            highest: AtomicU64::new(0),
        }
    }

    /// Returns whether `by` bytes fewer are taken than before; then that is the new measure.
    pub(crate) fn has_shrunk(&self, by: u64) -> bool {
        let now = self.bytes.load(Ordering::Relaxed);
        let before = self.highest.fetch_max(now, Ordering::Relaxed);
        let has_shrunk = before.saturating_sub(now) >= by;
        if has_shrunk {
            self.highest.store(now, Ordering::Relaxed);
        }
        has_shrunk
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            bytes: self.bytes.load(Ordering::Relaxed),
            inodes: self.inodes.load(Ordering::Relaxed),
        }
    }

    /// Takes `count` bytes, or none with ENOSPC.
    pub(crate) fn take_bytes(&self, count: u64) -> Result<()> {
        take(&self.bytes, self.limits.bytes, count)
    }

    /// Takes as many of `count` units of `unit` bytes as there are; returns their number.
    pub(crate) fn take_units(&self, count: u64, unit: u64) -> u64 {
        let mut taken = 0;
        let fits = |used: u64| {
            taken = (self.limits.bytes.saturating_sub(used) / unit).min(count);
            (taken > 0).then(|| used + taken * unit)
        };
        match self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
        {
            Ok(_) => taken,
            Err(_) => 0,
        }
    }

    pub(crate) fn give_bytes(&self, count: u64) {
        self.bytes.fetch_sub(count, Ordering::Relaxed);
    }

    /// Takes inodes and bytes, beyond the limits if it must be.
    pub(crate) fn take_beyond(&self, inodes: u64, bytes: u64) {
        self.inodes.fetch_add(inodes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes an inode, or fails with ENOSPC.
    pub(crate) fn take_inode(&self) -> Result<()> {
        take(&self.inodes, self.limits.inodes, 1)
    }

    pub(crate) fn give_inodes(&self, count: u64) {
        self.inodes.fetch_sub(count, Ordering::Relaxed);
    }
}

fn take(used: &AtomicU64, limit: u64, count: u64) -> Result<()> {
    let fits = |used: u64| used.checked_add(count).filter(|&sum| sum <= limit);
    match used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
        Ok(_) => Ok(()),
        Err(_) => Err(Errno::NOSPC),
    }
}
