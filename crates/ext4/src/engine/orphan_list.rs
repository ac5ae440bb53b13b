//! The list of orphans in memory: an orphan is found and removed in constant time, however many
//! there are.

use hashbrown::HashMap;

use super::Ino;

/// The neighbours of an orphan; 0 for none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neighbours {
    /// Added after this orphan: its `i_dtime` is this orphan's number.
    pub(crate) newer: Ino,
    /// Added before this orphan.
    pub(crate) older: Ino,
}

/// A list of inodes, from the newest, which the superblock refers to, to the oldest.
#[derive(Debug, Default)]
pub(crate) struct OrphanList {
    links: HashMap<Ino, Neighbours>,
    newest: Ino,
    oldest: Ino,
}

impl OrphanList {
    /// Returns the newest orphan; 0 for none.
    pub(crate) fn newest(&self) -> Ino {
        self.newest
    }

    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.links.contains_key(&ino)
    }

    /// Adds an inode as the newest, unless it is in the list. Returns the previous newest.
    pub(crate) fn push(&mut self, ino: Ino) -> Ino {
        let older = self.newest;
        if self.insert(ino, Neighbours { newer: 0, older }) {
            match self.links.get_mut(&older) {
                Some(link) => link.newer = ino,
                None => self.oldest = ino,
            }
            self.newest = ino;
        }
        older
    }

    /// Adds an inode as the oldest. Returns whether it was not in the list yet.
    pub(crate) fn push_oldest(&mut self, ino: Ino) -> bool {
        let newer = self.oldest;
        let is_new = self.insert(ino, Neighbours { newer, older: 0 });
        if is_new {
            match self.links.get_mut(&newer) {
                Some(link) => link.older = ino,
                None => self.newest = ino,
            }
            self.oldest = ino;
        }
        is_new
    }

    /// Removes an inode. Returns its former neighbours; `None` if it was not in the list.
    pub(crate) fn remove(&mut self, ino: Ino) -> Option<Neighbours> {
        let gone = self.links.remove(&ino)?;
        match self.links.get_mut(&gone.newer) {
            Some(link) => link.older = gone.older,
            None => self.newest = gone.older,
        }
        match self.links.get_mut(&gone.older) {
            Some(link) => link.newer = gone.newer,
            None => self.oldest = gone.newer,
        }
        Some(gone)
    }

    fn insert(&mut self, ino: Ino, neighbours: Neighbours) -> bool {
        let is_new = !self.links.contains_key(&ino);
        if is_new {
            self.links.insert(ino, neighbours);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn all(list: &OrphanList) -> Vec<Ino> {
        let mut found = Vec::new();
        let mut at = list.newest();
        while at != 0 {
            found.push(at);
            at = list.links[&at].older;
        }
        found
    }

    #[test]
    fn orphans_are_removed_from_both_ends_and_the_middle() {
        let mut list = OrphanList::default();
        assert_eq!((list.push(11), list.push(12), list.push(13)), (0, 11, 12));
        assert!(list.push_oldest(10) && !list.push_oldest(12));
        assert_eq!(all(&list), [13, 12, 11, 10]);
        let gone = list.remove(12).unwrap();
        assert_eq!((gone.newer, gone.older), (13, 11));
        assert!(list.remove(12).is_none());
        list.remove(13);
        list.remove(10);
        assert_eq!(all(&list), [11]);
        list.push_oldest(9);
        list.push(14);
        assert_eq!(all(&list), [14, 11, 9]);
        for ino in [11, 14, 9] {
            list.remove(ino);
        }
        assert_eq!((all(&list).len(), list.links.len(), list.oldest), (0, 0, 0));
    }
}
