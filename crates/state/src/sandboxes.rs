//! A store with its sandboxes' directory.

use std::path::PathBuf;

use micabox_error::Error;
use micabox_image::Store;

use crate::{Directory, Found, Record};

/// A store, and the directory of its sandboxes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    store: Store,
    directory: Directory,
}

impl Sandboxes {
    /// Opens the sandboxes of a store.
    ///
    /// # Errors
    /// [`Error::State`] if its directories can't be made.
    pub fn open(store: &Store) -> Result<Self, Error> {
        Ok(Self {
            directory: Directory::open(store.root())?,
            store: store.clone(),
        })
    }

    /// Returns the store, which has their images.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Returns all records, oldest first. Removes ended sandboxes with `auto_remove`.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn list(&self) -> Result<Vec<Record>, Error> {
        let all = self.directory.scan()?.into_iter();
        Ok(all.map(|found| found.record).collect())
    }

    /// Returns the directories of sandboxes with a disk whose records can't be read.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn unreadable(&self) -> Result<Vec<PathBuf>, Error> {
        self.directory.unreadable()
    }

    /// Finds the sandbox with this name, ID, or beginning of an ID.
    ///
    /// # Errors
    /// [`Error::NoSuchSandbox`], [`Error::Ambiguous`].
    pub fn find(&self, name_or_id: &str) -> Result<Found, Error> {
        // Docker's own documents have names with a slash before.
        let name_or_id = name_or_id.strip_prefix('/').unwrap_or(name_or_id);
        self.directory.find(name_or_id)
    }
}
