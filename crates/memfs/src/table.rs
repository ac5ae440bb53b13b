//! All inodes by number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::inode::Inode;

/// Parts of the table, each with a lock of its own.
const PARTS: usize = 64;

type Part = RwLock<HashMap<u64, Arc<Inode>>>;

/// All inodes by number. Numbers are not used again.
#[derive(Debug)]
pub(crate) struct Table {
    parts: Vec<Part>,
    last: AtomicU64,
}

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            parts: (0..PARTS).map(|_| Part::default()).collect(),
            last: AtomicU64::new(0),
        }
    }

    /// Returns a number that no inode had; the first is 1.
    pub(crate) fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn part(&self, number: u64) -> Option<&Part> {
        self.parts.get((number % PARTS as u64) as usize)
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<Inode>> {
        let part = self.part(number)?.read();
        let part = part.unwrap_or_else(PoisonError::into_inner);
        part.get(&number).cloned()
    }

    pub(crate) fn insert(&self, inode: Arc<Inode>) {
        if let Some(part) = self.part(inode.number) {
            let mut part = part.write().unwrap_or_else(PoisonError::into_inner);
            part.insert(inode.number, inode);
        }
    }

    pub(crate) fn remove(&self, number: u64) {
        if let Some(part) = self.part(number) {
            let mut part = part.write().unwrap_or_else(PoisonError::into_inner);
            let removed = part.remove(&number);
            if part.is_empty() {
                *part = HashMap::new();
            }
            drop(part);
            // What the inode had is dropped without the lock.
            drop(removed);
        }
    }
}
