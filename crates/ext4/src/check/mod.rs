//! Checks a whole filesystem like e2fsck: superblock and descriptors, then five passes over inodes,
//! directories, their connections, link counts, and bitmaps.
//!
//! The check decodes the structures itself: it does not use the code that reads and writes files.
//! It trusts nothing, changes nothing, and its memory grows with what the image contains, not with
//! what it claims.

mod beyond;
mod claims;
mod directories;
mod finding;
mod fixed;
mod htree;
mod inode;
mod inodes;
mod journal;
mod links;
mod map;
mod mark;
mod quota;
mod special;
mod state;
mod summary;
mod superblock;
mod volume;
mod xattrs;

use alloc::vec::Vec;

pub use finding::Finding;
pub use mark::clear_errors;

pub use beyond::BEYOND_E2FSCK;

use finding::Findings;
use state::State;
use volume::Volume;

use crate::BlockDevice;

/// Checks a filesystem and returns its defects; empty for a sound filesystem.
///
/// A journal that needs recovery is a finding; replay the journal first.
///
/// Everything for which `e2fsck -fn` exits with an error is found; [`BEYOND_E2FSCK`] lists findings
/// beyond that.
pub fn check(device: &dyn BlockDevice) -> Vec<Finding> {
    examine(device, Mark::Found)
}

/// How the check treats a kernel's mark of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// The mark is a finding.
    Found,
    /// The mark is ignored.
    Forgiven,
}

fn examine(device: &dyn BlockDevice, mark: Mark) -> Vec<Finding> {
    let mut found = Findings::default();
    if let Some(volume) = Volume::open(device, &mut found) {
        if mark == Mark::Found && volume.superblock.has_errors() {
            found.add("the filesystem is marked as having errors");
        }
        superblock::check(&volume, &mut found);
        let mut state = State::new(&volume, &mut found);
        fixed::claim(&mut state);
        inodes::scan(&mut state);
        journal::check(&mut state);
        journal::orphans(&mut state);
        directories::scan(&mut state);
        links::connectivity(&mut state);
        links::counts(&mut state);
        quota::compare(&mut state);
        summary::compare(&mut state);
    }
    found.finish()
}
