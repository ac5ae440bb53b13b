//! A table of datagram conversations. Datagrams have no end to observe, so idle entries expire.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::poll::Id;

/// Entries with a number and a key, in the order of their last use.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    entries: HashMap<Id, Entry<K, V>>,
    by_key: HashMap<K, Id>,
    by_use: BTreeSet<(Instant, Id)>,
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
            by_use: BTreeSet::new(),
            most,
            idle,
        }
    }

    /// Whether there is no room for another entry.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= self.most
    }

    /// Removes the entry that has been idle longest of those that `may_go`, which is given the time
    /// since an entry's last use. Returns its value.
    pub(super) fn remove_idle(
        &mut self,
        now: Instant,
        may_go: impl Fn(&V, Duration) -> bool,
    ) -> Option<V> {
        let mut oldest = self.by_use.iter();
        let found = oldest.find(|(used, id)| {
            let idle = now.saturating_duration_since(*used);
            let entry = self.entries.get(id);
            entry.is_some_and(|entry| may_go(&entry.value, idle))
        });
        let (_, id) = *found?;
        self.remove(id)
    }

    /// Adds an entry, for which there is room.
    pub(super) fn insert(&mut self, id: Id, key: K, value: V, now: Instant) {
        let used = now;
        self.by_key.insert(key, id);
        self.by_use.insert((used, id));
        self.entries.insert(id, Entry { key, value, used });
    }

    /// Returns the entry with this key, and marks it as used.
    pub(super) fn by_key(&mut self, key: &K, now: Instant) -> Option<(Id, &mut V)> {
        let id = *self.by_key.get(key)?;
        self.by_id(id, now).map(|(_, value)| (id, value))
    }

    /// Returns the entry with this number, and marks it as used.
    pub(super) fn by_id(&mut self, id: Id, now: Instant) -> Option<(K, &mut V)> {
        let entry = self.entries.get_mut(&id)?;
        if entry.used != now {
            self.by_use.remove(&(entry.used, id));
            self.by_use.insert((now, id));
            entry.used = now;
        }
        Some((entry.key, &mut entry.value))
    }

    /// Removes the entry with this number. Returns its value.
    pub(super) fn remove(&mut self, id: Id) -> Option<V> {
        let entry = self.entries.remove(&id)?;
        self.by_use.remove(&(entry.used, id));
        if self.by_key.get(&entry.key) == Some(&id) {
            self.by_key.remove(&entry.key);
        }
        Some(entry.value)
    }

    /// Removes an entry that has expired, if there is one. Returns its value.
    pub(super) fn expire(&mut self, now: Instant) -> Option<V> {
        let (used, id) = *self.by_use.first()?;
        if used + self.idle > now {
            return None;
        }
        self.remove(id)
    }

    /// Returns the time until the next entry expires.
    pub(super) fn quiet_for(&self, now: Instant) -> Option<Duration> {
        let (oldest, _) = self.by_use.first()?;
        Some((*oldest + self.idle).saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_entries_expire_in_the_order_of_their_use() {
        let idle = Duration::from_secs(10);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut table = Table::new(2, idle);
        table.insert(1, 'a', "first", at(0));
        table.insert(2, 'b', "second", at(1));
        assert_eq!(table.by_key(&'a', at(2)), Some((1, &mut "first")));
        assert_eq!(table.quiet_for(at(5)), Some(Duration::from_secs(6)));
        assert_eq!(table.expire(at(10)), None);
        assert_eq!(table.expire(at(11)), Some("second"));
        assert_eq!(table.expire(at(11)), None);
        assert_eq!(table.by_key(&'b', at(11)), None);
        assert_eq!(table.by_id(1, at(11)), Some(('a', &mut "first")));
        assert_eq!(table.remove(1), Some("first"));
        assert_eq!(table.quiet_for(at(14)), None);
        assert_eq!(table.by_key(&'a', at(14)), None);
    }

    #[test]
    fn the_longest_idle_entry_that_may_go_makes_room() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut table = Table::new(3, Duration::from_secs(100));
        for (id, key) in [(1, 'a'), (2, 'b'), (3, 'c')] {
            assert!(!table.is_full());
            table.insert(id, key, key, at(id));
        }
        assert!(table.is_full());
        assert_eq!(table.remove_idle(at(4), |_, _| false), None);
        assert_eq!(table.remove_idle(at(4), |key, _| *key != 'a'), Some('b'));
        let long = |_: &char, idle: Duration| idle >= Duration::from_secs(3);
        assert_eq!(table.remove_idle(at(3), long), None);
        assert_eq!(table.remove_idle(at(4), long), Some('a'));
        assert!(!table.is_full());
    }
}
