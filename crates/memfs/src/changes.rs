//! What differs from the lower.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use micabox_file::FileKind;

use crate::Result;
use crate::filesystem::Filesystem;
use crate::number::{ROOT, number_of};

/// Files of the lower that were changed, and the directories on the way to them.
#[derive(Debug)]
pub struct Changes {
    numbers: HashSet<u64>,
}

impl Changes {
    /// Returns whether a file of the lower, by its inode's number, was changed, or has something below it
    /// that was. One whose contents and attributes are the same may have another name.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        self.numbers.contains(&number)
    }
}

impl Filesystem {
    /// Returns which files of the lower were changed. If one of them has several names there, all its
    /// directories are listed.
    ///
    /// # Errors
    /// Those of the lower.
    pub fn changes(&self) -> Result<Changes> {
        let mut kept = Vec::new();
        self.inodes.each(|inode| {
            if let Some(below) = self.below(inode.number)
                && inode.state().taken > 0
            {
                kept.push((inode.number, inode.kind, below));
            }
        });
        let mut numbers = HashSet::new();
        for &(number, ..) in &kept {
            let mut at = number;
            while numbers.insert(at) && at != ROOT {
                let Ok(inode) = self.inode(at) else { break };
                at = inode.parent.load(Ordering::Relaxed);
            }
        }
        self.add_other_names(&kept, &mut numbers)?;
        Ok(Changes { numbers })
    }

    /// Adds the directories of other names in the lower.
    fn add_other_names(
        &self,
        kept: &[(u64, FileKind, u64)],
        numbers: &mut HashSet<u64>,
    ) -> Result<()> {
        let Some(lower) = &self.lower else {
            return Ok(());
        };
        let mut linked = HashSet::new();
        for &(_, kind, file) in kept {
            if kind != FileKind::Directory && lower.stat(file)?.links > 1 {
                linked.insert(file);
            }
        }
        if linked.is_empty() {
            return Ok(());
        }
        // Each directory with its number here and the place of the one above.
        let mut found = Vec::from([(lower.root(), ROOT, 0)]);
        let mut seen = HashSet::from([lower.root()]);
        let mut next = 0;
        while let Some(&(directory, ..)) = found.get(next) {
            for (_, file, kind) in lower.list(directory)? {
                if kind == FileKind::Directory && seen.insert(file) {
                    found.push((file, number_of(file)?, next));
                }
                if linked.contains(&file) {
                    let mut at = next;
                    while let Some(&(_, number, above)) = found.get(at)
                        && numbers.insert(number)
                    {
                        at = above;
                    }
                }
            }
            next += 1;
        }
        Ok(())
    }
}
