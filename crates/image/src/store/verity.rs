//! fs-verity, where the store's filesystem has it: the kernel checks images when it reads them from the disk, for every
//! process.

use std::fs::File;
use std::path::Path;

use micabox_jail::{enable_verity, verity_digest};
use micabox_oci::Digest;

use super::Store;

impl Store {
    /// Sets whether files that are published from now on get fs-verity, where the filesystem has it. By default they do.
    #[must_use]
    pub fn with_verity(mut self, is_on: bool) -> Self {
        self.verity = is_on;
        self
    }

    /// Returns whether the store's filesystem has fs-verity: whether a file there can be given it.
    #[must_use]
    pub fn has_verity(&self) -> bool {
        let Ok(scratch) = self.scratch() else {
            return false;
        };
        let made = scratch.create("verity").map(drop);
        made.is_ok() && seal(&scratch.path("verity")).is_some()
    }

    /// Returns whether files that are published now get fs-verity.
    pub(super) fn seals(&self) -> bool {
        self.verity && self.has_verity()
    }

    /// Gives a file that is finished fs-verity. Returns its digest; none where there is no fs-verity, which is no error.
    pub(super) fn sealed(&self, path: &Path) -> Option<Digest> {
        self.verity.then(|| seal(path)).flatten()
    }
}

fn seal(path: &Path) -> Option<Digest> {
    let file = File::open(path).ok()?;
    enable_verity(&file).ok()?;
    digest(&file)
}

/// Returns the digest of a file with fs-verity.
pub(super) fn digest(file: &File) -> Option<Digest> {
    verity_digest(file).map(Digest::from)
}
