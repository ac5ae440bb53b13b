//! What a pull of a snapshot leaves that was killed: files whose chunks the next pull of the name need not fetch. It is no
//! snapshot, as it has no record.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use micabox_error::Error;
use micabox_state::Lock;

use super::memory::FILES;
use super::names::{MEMORY, PART, map_of};
use super::{DISK, LOCK, PREFIX, RECORD, Snapshots, lock_unfinished, remove_abandoned};

/// How long it is kept, unless it is pruned before.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The lease of the image that such a snapshot is of.
const LEASE: &str = "lease.json";

impl Snapshots<'_> {
    /// Removes what pulls left that were killed.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn discard_left(&self) -> Result<(), Error> {
        let directory = self.0.directory().path();
        let _names = self.0.directory().lock()?;
        let entries = fs::read_dir(directory).map_err(Error::state("reading", directory))?;
        for entry in entries {
            let entry = entry.map_err(Error::state("reading", directory))?;
            let name = entry.file_name();
            let is_snapshot = name.to_string_lossy().starts_with(PREFIX);
            if is_snapshot && is_of_pull(&entry.path()) {
                remove_abandoned(&entry.path());
            }
        }
        Ok(())
    }
}

/// Returns whether a directory is what a pull has left not long ago.
pub(super) fn is_of_pull(directory: &Path) -> bool {
    let is_recent = |map: &Path| {
        let modified = map.metadata().and_then(|metadata| metadata.modified());
        let age = modified.map(|modified| modified.elapsed());
        age.is_ok_and(|age| age.is_ok_and(|age| age < KEPT))
    };
    let mut maps = [DISK, MEMORY]
        .map(|file| map_of(&directory.join(file)))
        .into_iter();
    !directory.join(RECORD).exists() && maps.any(|map| is_recent(&map))
}

/// Releases the image of a pull that was killed. The caller holds the lock on names.
pub(super) fn release(directory: &Path) {
    if !matches!(Lock::attempt(&directory.join(LOCK)), Ok(None)) {
        let _ = fs::remove_file(directory.join(LEASE));
    }
}

/// Makes and locks the directory for a pull. Of one that was killed, the files stay that have maps.
pub(super) fn claim_for_pull(directory: &Path, name: &str) -> Result<Lock, Error> {
    let lock = lock_unfinished(directory, name)?;
    let is_mapped = |file: &&str| map_of(&directory.join(file)).exists();
    let kept = [DISK, MEMORY, PART].into_iter().filter(is_mapped);
    let kept: Vec<&str> = kept.collect();
    let is_kept = |file: &str| kept.contains(&file) || file.ends_with(".map");
    let others: Vec<&str> = FILES.into_iter().filter(|file| !is_kept(file)).collect();
    remove(directory, &others)?;
    Ok(lock)
}

/// Gives what is left of a memory the name that it is to have now.
pub(super) fn rename(directory: &Path, from: &str, to: &str) -> Result<(), Error> {
    let (from, to) = (directory.join(from), directory.join(to));
    match fs::rename(&from, &to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::state("renaming", &from)(error))
        }
        _ => Ok(()),
    }
}

/// Removes those files of a directory that there are.
pub(super) fn remove(directory: &Path, files: &[&str]) -> Result<(), Error> {
    for file in files {
        match fs::remove_file(directory.join(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::state("removing", directory)(error));
            }
            _ => {}
        }
    }
    Ok(())
}
