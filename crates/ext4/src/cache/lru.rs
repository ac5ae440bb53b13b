//! A map that knows its least recently used values.

use core::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::list::List;

/// A key that finds a `K` without being one, such as a borrowed name for an owned one. Both must
/// have the same hash.
pub(crate) trait Key<K>: Hash {
    fn is(&self, key: &K) -> bool;
}

impl Key<u64> for u64 {
    fn is(&self, key: &u64) -> bool {
        self == key
    }
}

impl Key<u32> for u32 {
    fn is(&self, key: &u32) -> bool {
        self == key
    }
}

/// A map in order of last use.
#[derive(Debug)]
pub(crate) struct Lru<K, V> {
    hasher: DefaultHashBuilder,
    table: HashTable<u32>,
    list: List<(K, V)>,
}

impl<K, V> Default for Lru<K, V> {
    fn default() -> Self {
        Self {
            hasher: DefaultHashBuilder::default(),
            table: HashTable::new(),
            list: List::default(),
        }
    }
}

impl<K: Hash + Key<K>, V> Lru<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    fn slot(&self, key: &impl Key<K>) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        let list = &self.list;
        self.table
            .find(hash, |&slot| {
                list.get(slot).is_some_and(|(known, _)| key.is(known))
            })
            .copied()
    }

    /// Returns the value of `key`, without counting as a use.
    pub(crate) fn peek(&self, key: &impl Key<K>) -> Option<&V> {
        self.list.get(self.slot(key)?).map(|(_, value)| value)
    }

    /// Returns the value of `key`, and makes it the most recently used.
    pub(crate) fn get(&mut self, key: &impl Key<K>) -> Option<&mut V> {
        let slot = self.slot(key)?;
        self.list.touch(slot);
        self.list.get_mut(slot).map(|(_, value)| value)
    }

    /// Returns the slot of `key`, and makes it the most recently used; see [`Lru::at`].
    pub(crate) fn touch(&mut self, key: &impl Key<K>) -> Option<u32> {
        let slot = self.slot(key)?;
        self.list.touch(slot);
        Some(slot)
    }

    /// Returns the value in a slot.
    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut V> {
        self.list.get_mut(slot).map(|(_, value)| value)
    }

    /// Adds or replaces the value of `key`; returns its slot.
    pub(crate) fn insert(&mut self, key: K, value: V) -> u32 {
        if let Some(slot) = self.touch(&key) {
            if let Some(place) = self.at(slot) {
                *place = value;
            }
            return slot;
        }
        let hash = self.hasher.hash_one(&key);
        let slot = self.list.insert((key, value));
        let (hasher, list) = (&self.hasher, &self.list);
        self.table.insert_unique(hash, slot, |&slot| {
            list.get(slot).map_or(0, |(key, _)| hasher.hash_one(key))
        });
        slot
    }

    pub(crate) fn remove(&mut self, key: &impl Key<K>) -> Option<V> {
        let hash = self.hasher.hash_one(key);
        let list = &self.list;
        let entry = self
            .table
            .find_entry(hash, |&slot| {
                list.get(slot).is_some_and(|(known, _)| key.is(known))
            })
            .ok()?;
        let (slot, _) = entry.remove();
        self.list.remove(slot).map(|(_, value)| value)
    }

    /// Removes values that `may_go`, oldest first, until `keep` are left. Skips the others, and
    /// visits at most twice the excess and a few more.
    pub(crate) fn shrink(&mut self, keep: usize, may_go: impl Fn(&V) -> bool) {
        let mut excess = self.len().saturating_sub(keep);
        let mut patience = excess.saturating_mul(2) + 64;
        let mut next = self.list.oldest();
        while let Some(slot) = next
            && excess > 0
            && patience > 0
        {
            next = self.list.newer(slot);
            patience -= 1;
            let Some((key, value)) = self.list.get(slot) else {
                continue;
            };
            if may_go(value) {
                let hash = self.hasher.hash_one(key);
                if let Ok(entry) = self.table.find_entry(hash, |&other| other == slot) {
                    entry.remove();
                }
                self.list.remove(slot);
                excess -= 1;
            }
        }
    }

    /// Iterates over all values, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.table
            .iter()
            .filter_map(|&slot| self.list.get(slot))
            .map(|(key, value)| (key, value))
    }

    pub(crate) fn clear(&mut self) {
        self.table.clear();
        self.list = List::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn the_least_recently_used_entry_goes_first() {
        let mut lru = Lru::<u64, u64>::default();
        for key in 0..10 {
            lru.insert(key, key);
        }
        lru.get(&0u64);
        lru.shrink(5, |&value| value != 2);
        let mut left: Vec<u64> = lru.iter().map(|(&key, _)| key).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 2, 7, 8, 9]);
        assert_eq!(lru.remove(&7u64), Some(7));
        assert_eq!(lru.peek(&7u64), None);
        assert_eq!(lru.len(), 4);
    }
}
