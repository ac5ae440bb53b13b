//! All inodes by number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use micabox_ground::lock;

use crate::inode::Inode;

/// Parts of the table, each with a lock of its own.
const PARTS: usize = 64;

type Part = RwLock<HashMap<u64, Arc<Inode>>>;

/// All inodes by number. Numbers are not used again. Those that are made here are odd; even ones are
/// of the lower's files ([`crate::number`]), which leave the table and come back.
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
        self.last.fetch_add(1, Ordering::Relaxed) * 2 + 1
    }

    fn part(&self, number: u64) -> Option<&Part> {
        self.parts.get((number / 2 % PARTS as u64) as usize)
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<Inode>> {
        let part = lock::read(self.part(number)?);
        part.get(&number).cloned()
    }

    pub(crate) fn insert(&self, inode: Arc<Inode>) {
        if let Some(part) = self.part(inode.number) {
            let mut part = lock::write(part);
            part.insert(inode.number, inode);
        }
    }

    /// Returns an inode, held once more.
    pub(crate) fn hold(&self, number: u64) -> Option<Arc<Inode>> {
        let part = lock::read(self.part(number)?);
        let inode = part.get(&number)?;
        inode.state().holds += 1;
        Some(Arc::clone(inode))
    }

    /// Adds an inode that is held, unless its number is taken meanwhile: then that one is held, and returned.
    pub(crate) fn insert_or_hold(&self, inode: &Arc<Inode>) -> Option<Arc<Inode>> {
        let mut part = lock::write(self.part(inode.number)?);
        if let Some(there) = part.get(&inode.number) {
            there.state().holds += 1;
            return Some(Arc::clone(there));
        }
        part.insert(inode.number, Arc::clone(inode));
        None
    }

    pub(crate) fn remove(&self, number: u64) {
        self.remove_if(number, |_| true);
    }

    /// Removes an inode if `is_due`, while no other thread can hold it; returns whether it did.
    pub(crate) fn remove_if(&self, number: u64, is_due: impl FnOnce(&Inode) -> bool) -> bool {
        let Some(part) = self.part(number) else {
            return false;
        };
        let mut part = lock::write(part);
        if !part.get(&number).is_some_and(|inode| is_due(inode)) {
            return false;
        }
        let removed = part.remove(&number);
        if part.is_empty() {
            *part = HashMap::new();
        }
        drop(part);
        // What the inode had is dropped without the lock.
        drop(removed);
        true
    }

    /// Calls `each` for all inodes.
    pub(crate) fn each(&self, mut each: impl FnMut(&Arc<Inode>)) {
        for part in &self.parts {
            let part = lock::read(part);
            part.values().for_each(&mut each);
        }
    }
}
