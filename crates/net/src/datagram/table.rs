//! A table of datagram conversations. Datagrams have no end to observe, so idle entries expire.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::poll::Id;

/// Entries with a number and a key. When the table is full, the least recently used entry makes
/// room.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    entries: HashMap<Id, Entry<K, V>>,
    by_key: HashMap<K, Id>,
    most: usize,
    idle: Duration,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    used: Instant,
}

impl<K: Copy + Eq + Hash, V> Table<K, V> {
    /// Creates a table for at most `most` entries, each kept for `idle` after its last use.
    pub(super) fn new(most: usize, idle: Duration) -> Self {
        Self {
            entries: HashMap::new(),
            by_key: HashMap::new(),
            most,
            idle,
        }
    }

    pub(super) fn insert(&mut self, id: Id, key: K, value: V, now: Instant) {
        if self.entries.len() >= self.most {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            if let Some(id) = oldest.map(|(id, _)| *id) {
                self.remove(id);
            }
        }
        let used = now;
        self.by_key.insert(key, id);
        self.entries.insert(id, Entry { key, value, used });
    }

    /// Returns the entry with this key, and marks it as used.
    pub(super) fn by_key(&mut self, key: &K, now: Instant) -> Option<(Id, &mut V)> {
        let id = *self.by_key.get(key)?;
        let entry = self.entries.get_mut(&id)?;
        entry.used = now;
        Some((id, &mut entry.value))
    }

    /// Returns the entry with this key, without marking it as used.
    pub(super) fn peek(&self, key: &K) -> Option<&V> {
        let entry = self.entries.get(self.by_key.get(key)?)?;
        Some(&entry.value)
    }

    /// Returns the entry with this number, and marks it as used.
    pub(super) fn by_id(&mut self, id: Id, now: Instant) -> Option<(K, &mut V)> {
        let entry = self.entries.get_mut(&id)?;
        entry.used = now;
        Some((entry.key, &mut entry.value))
    }

    pub(super) fn remove(&mut self, id: Id) {
        if let Some(entry) = self.entries.remove(&id)
            && self.by_key.get(&entry.key) == Some(&id)
        {
            self.by_key.remove(&entry.key);
        }
    }

    /// Returns the numbers of the entries whose value is `wanted`.
    pub(super) fn ids(&self, wanted: impl Fn(&V) -> bool) -> Vec<Id> {
        self.entries
            .iter()
            .filter(|(_, entry)| wanted(&entry.value))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Removes the entries that have expired.
    pub(super) fn expire(&mut self, now: Instant) {
        let idle = self.idle;
        self.entries.retain(|_, entry| entry.used + idle > now);
        let entries = &self.entries;
        self.by_key.retain(|_, id| entries.contains_key(id));
    }

    /// Returns the time until the next entry expires.
    pub(super) fn quiet_for(&self, now: Instant) -> Option<Duration> {
        let oldest = self.entries.values().map(|entry| entry.used).min()?;
        Some((oldest + self.idle).saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_flow_makes_room() {
        let idle = Duration::from_secs(10);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut table = Table::new(2, idle);
        table.insert(1, 'a', "first", at(0));
        table.insert(2, 'b', "second", at(1));
        assert_eq!(table.by_key(&'a', at(2)), Some((1, &mut "first")));
        table.insert(3, 'c', "third", at(3));
        assert_eq!(table.by_key(&'b', at(3)), None);
        assert_eq!(table.by_id(2, at(3)), None);
        assert_eq!(table.quiet_for(at(5)), Some(Duration::from_secs(7)));
        assert_eq!(table.by_id(1, at(6)), Some(('a', &mut "first")));
        table.expire(at(13));
        assert_eq!(table.ids(|_| true), [1]);
        assert_eq!(table.by_key(&'c', at(13)), None);
        table.remove(1);
        assert_eq!(table.quiet_for(at(14)), None);
        assert_eq!(table.by_key(&'a', at(14)), None);
    }
}
