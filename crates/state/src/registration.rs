//! A sandbox that this process is responsible for.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use micabox_error::Error;

use super::directory::{choose_name, discard, release_image};
use super::{Directory, Lock, Record, record_file};

/// The registration of a sandbox that this process is responsible for. Dropping it leaves a record
/// of the sandbox, or removes its directory if the record has `auto_remove`.
#[derive(Debug)]
pub struct Registration {
    sandboxes: Directory,
    path: PathBuf,
    record: Record,
    lock: Lock,
    /// Another process is responsible for the sandbox now.
    is_handed_over: bool,
}

impl Registration {
    /// Makes the registration of a sandbox whose lock this process has: it is new, or the process that had it
    /// has handed it over.
    pub fn of(sandboxes: Directory, record: Record, lock: Lock) -> Self {
        let path = sandboxes.path().join(&record.id);
        Self {
            sandboxes,
            path,
            record,
            lock,
            is_handed_over: false,
        }
    }

    /// Returns the locked file, for the process that takes the registration over.
    pub fn lock(&self) -> &File {
        self.lock.file()
    }

    /// Leaves the sandbox to the process that has taken it over.
    pub fn hand_over(mut self) {
        self.lock.outlive_us();
        self.is_handed_over = true;
    }

    /// Returns the record.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the record as the process has written it that takes the registration over.
    pub fn written(&self) -> Option<Record> {
        record_file::read(&self.path)
    }

    /// Returns the record, for changes that the next [`Registration::update`] writes.
    pub fn record_mut(&mut self) -> &mut Record {
        &mut self.record
    }

    /// Returns the sandbox's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes the record, in memory and on disk.
    pub fn update(&mut self, change: impl FnOnce(&mut Record)) -> Result<(), Error> {
        change(&mut self.record);
        // Readers of records hold this lock.
        let _names = self.sandboxes.lock()?;
        record_file::write(&self.path, &self.record)
    }

    /// Renames the sandbox.
    pub fn rename(&mut self, name: &str) -> Result<(), Error> {
        let _names = self.sandboxes.lock()?;
        let others = self.sandboxes.scan_locked()?;
        let name = choose_name(Some(name), &self.record.id, &others)?;
        let old = std::mem::replace(&mut self.record.name, name);
        if let Err(error) = record_file::write(&self.path, &self.record) {
            self.record.name = old;
            return Err(error);
        }
        self.note("rename", &[("old_name", old)]);
        Ok(())
    }

    /// Adds an event of the sandbox to the store's history.
    pub fn note(&self, action: &str, attributes: &[(&str, String)]) {
        self.sandboxes.note(&self.record, action, attributes);
    }

    /// Returns a file that the machine's process holds open for as long as it may use the sandbox's
    /// disk.
    pub fn lifeline(&self) -> Result<Arc<File>, Error> {
        let shared = self.lock.share();
        Ok(Arc::new(
            shared.map_err(Error::state("sharing", &self.path))?,
        ))
    }

    /// Keeps the sandbox locked until its machine has ended.
    pub fn outlive_us(&mut self) {
        self.lock.outlive_us();
    }

    /// Removes the sandbox's directory.
    pub fn forget(mut self) {
        self.record.auto_remove = true;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.is_handed_over {
            return;
        }
        // Keeps scans from finding an incomplete directory.
        let _names = self.sandboxes.lock();
        if self.record.auto_remove {
            if discard(&self.path).is_ok() {
                self.sandboxes.is_gone(&self.record);
            }
        } else {
            release_image(&self.path, &self.record);
        }
    }
}
