//! Keeps what was made last.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use micabox_ground::lock;

/// The bytes that were made last, by key. Threads that need the same bytes at the same time wait for the one that makes
/// them.
pub struct Recent<K> {
    slots: Mutex<VecDeque<(K, Arc<Slot>)>>,
    most: usize,
}

/// Bytes, once they are there.
type Slot = Mutex<Option<Arc<Vec<u8>>>>;

impl<K: Copy + PartialEq> Recent<K> {
    /// Keeps the bytes of `most` keys, at most.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            slots: Mutex::new(VecDeque::new()),
            most,
        }
    }

    /// Returns a key's bytes, which `make` makes unless they are kept.
    ///
    /// # Errors
    ///
    /// Those of `make`; the next caller tries again.
    pub fn get(
        &self,
        key: K,
        make: impl FnOnce() -> io::Result<Vec<u8>>,
    ) -> io::Result<Arc<Vec<u8>>> {
        let slot = self.slot(key);
        let mut slot = lock(&slot);
        if let Some(bytes) = &*slot {
            return Ok(Arc::clone(bytes));
        }
        let bytes = Arc::new(make()?);
        *slot = Some(Arc::clone(&bytes));
        Ok(bytes)
    }

    /// Returns the place of a key, and gives up the least recently used one if there are too many.
    fn slot(&self, key: K) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        let at = slots.iter().position(|(kept, _)| *kept == key);
        let found = at.and_then(|at| slots.remove(at));
        let slot = found.map(|(_, slot)| slot).unwrap_or_default();
        slots.push_back((key, Arc::clone(&slot)));
        if slots.len() > self.most {
            slots.pop_front();
        }
        slot
    }
}

impl<K> fmt::Debug for Recent<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recent")
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}
