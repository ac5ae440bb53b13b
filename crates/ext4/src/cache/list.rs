//! Values in slots, linked in order from most to least recently used.

use alloc::vec::Vec;
use micabox_file::narrow::saturate32;

/// Marks the absence of a slot.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    newer: u32,
    older: u32,
}

/// Values by slot number, in order of last use. All operations take constant time.
#[derive(Debug)]
pub(crate) struct List<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }
}

impl<T> List<T> {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds a value as the newest.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let slot = Slot {
            value: Some(value),
            newer: NONE,
            older: NONE,
        };
        let number = match self.free.pop() {
            Some(number) => {
                if let Some(place) = self.slots.get_mut(number as usize) {
                    *place = slot;
                }
                number
            }
            None => {
                self.slots.push(slot);
                saturate32(self.slots.len() - 1)
            }
        };
        self.push_newest(number);
        number
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.value.as_mut()
    }

    /// Makes a value the most recently used.
    pub(crate) fn touch(&mut self, slot: u32) {
        if self.newest != slot {
            self.unlink(slot);
            self.push_newest(slot);
        }
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.slots.get_mut(slot as usize)?.value.take()?;
        self.unlink(slot);
        self.free.push(slot);
        Some(value)
    }

    /// Returns the least recently used slot.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Returns the slot used next after `slot`.
    pub(crate) fn newer(&self, slot: u32) -> Option<u32> {
        self.slots
            .get(slot as usize)
            .map(|slot| slot.newer)
            .filter(|&newer| newer != NONE)
    }

    fn unlink(&mut self, slot: u32) {
        let Some((newer, older)) = self
            .slots
            .get(slot as usize)
            .map(|slot| (slot.newer, slot.older))
        else {
            return;
        };
        match self.slots.get_mut(newer as usize) {
            Some(neighbour) => neighbour.older = older,
            None => self.newest = older,
        }
        match self.slots.get_mut(older as usize) {
            Some(neighbour) => neighbour.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn push_newest(&mut self, number: u32) {
        let older = self.newest;
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.newer = NONE;
            slot.older = older;
        }
        match self.slots.get_mut(older as usize) {
            Some(neighbour) => neighbour.newer = number,
            None => self.oldest = number,
        }
        self.newest = number;
    }
}
