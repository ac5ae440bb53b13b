//! Scratch directories for unfinished files, and their removal after their process was killed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use micabox_ground::locked::{Locked, Mode};

use super::error::{Context, Result};

const LOCK_SUFFIX: &str = ".lock";

/// A directory in the store's `tmp` for one process, removed when dropped.
///
/// A locked file beside it shows that the process is alive: if the file is unlocked, the process
/// is gone.
#[derive(Debug)]
pub(crate) struct Scratch {
    directory: PathBuf,
    lock_path: PathBuf,
    _lock: Locked,
}

impl Scratch {
    /// Makes a directory with a random name in `tmp`.
    pub fn new(tmp: &Path) -> Result<Self> {
        fs::create_dir_all(tmp).context("create", tmp)?;
        loop {
            let named = tempfile::Builder::new()
                .prefix("")
                .suffix(LOCK_SUFFIX)
                .rand_bytes(16)
                .tempfile_in(tmp)
                .context("create a file in", tmp)?;
            let (lock, lock_path) = named.into_parts();
            let lock = Locked::wait(lock, Mode::Exclusive).context("lock", &lock_path)?;
            // Before the file was locked, another process may have removed it as a leftover.
            if !lock.is_at(&lock_path).unwrap_or_default() {
                continue;
            }
            let lock_path = lock_path.keep().map_err(|e| e.error).context("keep", tmp)?;
            let directory = lock_path.with_extension("");
            let scratch = Self {
                directory,
                lock_path,
                _lock: lock,
            };
            fs::create_dir(&scratch.directory).context("create", &scratch.directory)?;
            return Ok(scratch);
        }
    }

    /// Returns the path of a new file in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the directory itself.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes a file in it.
    pub fn create(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        options.open(&path).context("create", &path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What can't be removed now is a leftover, for a later process to remove.
        let _ = remove(&self.directory, &self.lock_path);
    }
}

/// Removes the directory first: a directory without a lock file is never removed.
fn remove(directory: &Path, lock_path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match fs::remove_file(lock_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A leftover of a killed process in `tmp`: a directory, with the lock that keeps other processes
/// away from it while this value lives.
pub(crate) struct Leftover {
    pub directory: PathBuf,
    lock_path: PathBuf,
    _lock: Locked,
}

impl Leftover {
    /// Finds the directories whose processes are gone. Unreadable ones are skipped: they are
    /// harmless.
    pub fn find(tmp: &Path) -> Vec<Self> {
        let entries = fs::read_dir(tmp).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| Self::take(entry.path()))
            .collect()
    }

    fn take(lock_path: PathBuf) -> Option<Self> {
        if lock_path.extension()? != LOCK_SUFFIX.strip_prefix('.')? {
            return None;
        }
        let lock = OpenOptions::new().write(true).open(&lock_path).ok()?;
        let lock = Locked::attempt(lock, Mode::Exclusive).ok()??;
        lock.is_at(&lock_path).ok()?.then(|| Self {
            directory: lock_path.with_extension(""),
            lock_path,
            _lock: lock,
        })
    }

    /// Removes the directory and its lock.
    pub fn remove(self) -> Result<()> {
        remove(&self.directory, &self.lock_path).context("remove", &self.directory)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn scratch_of_a_living_process_is_kept() {
        let tmp = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(tmp.path()).unwrap();
        scratch.create("file").unwrap();
        assert!(Leftover::find(tmp.path()).is_empty());
        drop(scratch);
        assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0);
    }

    #[test]
    fn looking_for_leftovers_keeps_no_lock() {
        let tmp = tempfile::tempdir().unwrap();
        fs::write(tmp.path().join("dead.lock"), "").unwrap();
        std::thread::scope(|scope| {
            let children = scope.spawn(|| {
                for _ in 0..100 {
                    Command::new("true").status().unwrap();
                }
            });
            while !children.is_finished() {
                assert_eq!(Leftover::find(tmp.path()).len(), 1);
            }
        });
    }

    #[test]
    fn scratch_of_a_dead_process_is_found_and_removed() {
        let tmp = tempfile::tempdir().unwrap();
        fs::write(tmp.path().join("dead.lock"), "").unwrap();
        fs::create_dir(tmp.path().join("dead")).unwrap();
        fs::write(tmp.path().join("dead/file"), "x").unwrap();
        fs::write(tmp.path().join("alone.lock"), "").unwrap();
        let leftovers = Leftover::find(tmp.path());
        assert_eq!(leftovers.len(), 2);
        // While one process cleans up, another one skips the same leftovers.
        assert!(Leftover::find(tmp.path()).is_empty());
        leftovers
            .into_iter()
            .for_each(|leftover| leftover.remove().unwrap());
        assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0);
    }
}
