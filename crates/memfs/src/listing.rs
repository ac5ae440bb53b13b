//! Lists directories (readdir(3)).

use std::sync::atomic::Ordering;

use micabox_file::FileKind;

use crate::Result;
use crate::directory::{Child, PARENT, SELF};
use crate::filesystem::Filesystem;
use crate::number::number_of;
use micabox_file::Stat;

/// An entry that is listed.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// The inode's number.
    pub number: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Where listing goes on behind the entry.
    pub after: u64,
    /// The entry's name; also `.` and `..`.
    pub name: &'a [u8],
}

impl Filesystem {
    /// Lists a directory from a place on, 0 at first, until `take` returns false. `take` gets a function
    /// that holds the entry's inode and returns its attributes, except for `.` and `..`. Entries that
    /// are made or removed meanwhile are listed or not; all others are listed once.
    ///
    /// # Errors
    /// `ENOTDIR`, `ESTALE`, those of the lower.
    pub fn list(
        &self,
        directory: u64,
        after: u64,
        mut take: impl FnMut(Listed<'_>, Option<&dyn Fn() -> Result<Stat>>) -> bool,
    ) -> Result<()> {
        let inode = self.inode(directory)?;
        let entries = self.entries(&inode)?;
        let parent = inode.parent.load(Ordering::Relaxed);
        for (place, name, number) in [(SELF, &b"."[..], directory), (PARENT, b"..", parent)] {
            let listed = Listed {
                number,
                kind: FileKind::Directory,
                after: place,
                name,
            };
            if after < place && !take(listed, None) {
                return Ok(());
            }
        }
        for entry in entries.behind(after.max(PARENT)) {
            let (place, name, child) = entry?;
            let (number, kind) = match child {
                Child::Made(inode) => (inode.number, inode.kind),
                Child::Below(file, kind) => (number_of(*file)?, *kind),
            };
            let listed = Listed {
                number,
                kind,
                after: place,
                name,
            };
            if !take(listed, Some(&|| self.hold_child(&inode, child))) {
                break;
            }
        }
        Ok(())
    }
}
