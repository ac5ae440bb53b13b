//! Checks a whole filesystem, as e2fsck does: superblock and descriptors, then five passes
//! over inodes, directories, their connections, link counts, and bitmaps.
//!
//! It reads the structures by itself: what reading and writing files relies on is not relied
//! on here. Nothing is trusted, nothing is changed, and memory grows with what the image holds
//! and not with what it claims.

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

/// Checks a filesystem and returns what is wrong with it: nothing for a sound one.
///
/// A journal that needs recovery is a finding; replay it first.
///
/// What `e2fsck -fn` exits with an error for is found; what is found beyond that is in
/// [`BEYOND_E2FSCK`].
pub fn check(device: &dyn BlockDevice) -> Vec<Finding> {
    examine(device, Mark::Found)
}

/// What a kernel's mark of errors is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Something wrong.
    Found,
    /// Nothing: the rest is asked for.
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
