//! Keeps the first bytes of blobs whose pull was killed or given up, so that the next pull fetches
//! only the rest.
//!
//! Each is a file in `tmp`, named by the blob's digest and locked while a pull uses it. Its bytes
//! are not trusted: the blob's digest is computed over them and the rest, and a pull that finds it
//! wrong starts over without them.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use micabox_ground::locked::{Locked, Mode};

use super::Store;
use super::durable;
use super::error::Result;
use micabox_oci::Digest;

const SUFFIX: &str = ".blob";
/// Smaller blobs, in bytes, are not kept but fetched again.
const WORTH_KEEPING: u64 = 4 << 20;
/// Starts of blobs that were unused for this long are removed.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most starts of blobs that are kept; the oldest are removed first.
const MOST: usize = 32;

/// The start of a blob on the disk, for one pull at a time.
#[derive(Debug)]
pub struct Partial {
    file: Locked,
    path: PathBuf,
    /// Bytes in the file, which are the blob's first ones.
    length: u64,
}

impl Store {
    /// Opens the kept start of a blob of `size` bytes, which may be empty. `None` if the blob
    /// isn't worth keeping, if another pull uses its start, or if the disk fails: then the pull
    /// continues without it.
    pub fn partial(&self, blob: &Digest, size: u64) -> Option<Partial> {
        if size < WORTH_KEEPING {
            return None;
        }
        let path = self.layout.tmp().join(blob.hex() + SUFFIX);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.mode(0o600).open(&path).ok()?;
        let file = Locked::attempt(file, Mode::Exclusive).ok()??;
        let mut length = file.file().metadata().ok()?.len();
        if length > size {
            // Too long to be the start of this blob.
            file.file().set_len(0).ok()?;
            length = 0;
        }
        Some(Partial { file, path, length })
    }

    /// Removes starts of blobs that are too old or too many. The caller must hold the shared lock.
    ///
    /// # Errors
    ///
    /// Errors of the store's directory.
    pub fn drop_old_partials(&self) -> Result<()> {
        let now = SystemTime::now();
        let mut kept: Vec<(SystemTime, PathBuf)> = Vec::new();
        for path in self.partials()? {
            let changed = fs::metadata(&path).and_then(|metadata| metadata.modified());
            kept.extend(changed.ok().map(|changed| (changed, path)));
        }
        kept.sort_unstable();
        let too_many = kept.len().saturating_sub(MOST);
        for (number, (changed, path)) in kept.iter().enumerate() {
            let age = now.duration_since(*changed).unwrap_or_default();
            if number < too_many || age > KEPT_FOR {
                remove_idle(path);
            }
        }
        Ok(())
    }

    /// Returns the files with starts of blobs.
    pub(super) fn partials(&self) -> Result<Vec<PathBuf>> {
        let tmp = self.layout.tmp();
        let names = durable::list(&tmp)?;
        let ours = names.into_iter().filter(|name| name.ends_with(SUFFIX));
        Ok(ours.map(|name| tmp.join(name)).collect())
    }
}

/// Removes a file that no pull uses.
fn remove_idle(path: &Path) {
    if let Ok(file) = OpenOptions::new().write(true).open(path)
        && let Ok(Some(_locked)) = Locked::attempt(file, Mode::Exclusive)
    {
        // A file that can't be removed is harmless.
        let _ = fs::remove_file(path);
    }
}

impl Partial {
    /// Returns how many of the blob's first bytes were kept.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.file().write_all_at(bytes, self.length)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.length == 0 {
            self.remove();
        }
    }
}

/// Reads a blob: first the kept bytes, then the rest, which is kept as well.
pub struct Keeping<R> {
    partial: Option<Partial>,
    /// Bytes that were kept before, and how many of them were read so far.
    kept: u64,
    again: u64,
    rest: R,
}

impl<R> Keeping<R> {
    /// Starts with `partial`; `rest` is the blob's bytes after it.
    pub fn new(partial: Option<Partial>, rest: R) -> Self {
        Self {
            kept: partial.as_ref().map_or(0, Partial::length),
            again: 0,
            partial,
            rest,
        }
    }

    /// Ends the blob. Its start stays only if `keep`: another pull may continue from there then.
    pub fn end(self, keep: bool) {
        if let Some(partial) = &self.partial
            && !keep
        {
            partial.remove();
        }
    }
}

impl<R: Read> Read for Keeping<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.again < self.kept
            && let Some(partial) = &self.partial
        {
            let left = usize::try_from(self.kept - self.again).unwrap_or(usize::MAX);
            let most = buffer.len().min(left);
            let count = partial
                .file
                .file()
                .read_at(&mut buffer[..most], self.again)?;
            if count == 0 && most > 0 {
                return Err(io::Error::other("what was kept of the blob is gone"));
            }
            self.again += count as u64;
            return Ok(count);
        }
        let count = self.rest.read(buffer)?;
        if let Some(partial) = &mut self.partial
            && partial.append(&buffer[..count]).is_err()
        {
            // On a full disk the start of a blob is dispensable.
            partial.remove();
            self.partial = None;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const SIZE: u64 = WORTH_KEEPING;

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        (directory, store)
    }

    fn read(partial: Option<Partial>, rest: &[u8], keep: bool) -> Vec<u8> {
        let mut keeping = Keeping::new(partial, rest);
        let mut all = Vec::new();
        keeping.read_to_end(&mut all).unwrap();
        keeping.end(keep);
        all
    }

    #[test]
    fn a_partial_blob_is_resumed() {
        let (_directory, store) = store();
        let blob = Digest::of(b"blob");
        assert!(store.partial(&blob, SIZE - 1).is_none(), "too small");
        assert_eq!(read(store.partial(&blob, SIZE), b"abc", true), b"abc");
        let partial = store.partial(&blob, SIZE).unwrap();
        assert_eq!(partial.length(), 3);
        assert!(store.partial(&blob, SIZE).is_none(), "another has it");
        assert_eq!(read(Some(partial), b"def", true), b"abcdef");
        assert_eq!(read(store.partial(&blob, SIZE), b"", false), b"abcdef");
        assert_eq!(store.partial(&blob, SIZE).unwrap().length(), 0);
        assert!(store.partials().unwrap().is_empty());
    }

    #[test]
    fn a_partial_blob_longer_than_the_blob_is_discarded() {
        let (_directory, store) = store();
        let blob = Digest::of(b"blob");
        let path = store.layout.tmp().join(blob.hex() + SUFFIX);
        File::create(&path).unwrap().set_len(SIZE + 1).unwrap();
        assert_eq!(store.partial(&blob, SIZE).unwrap().length(), 0);
    }

    #[test]
    fn old_partial_blobs_are_removed_and_the_newest_kept() {
        let (_directory, store) = store();
        let day = Duration::from_secs(24 * 3600);
        let make = |number: u8, age: Duration| {
            let path = store
                .layout
                .tmp()
                .join(Digest::of(&[number]).hex() + SUFFIX);
            let file = File::create(&path).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            path
        };
        let old = make(0, 8 * day);
        let busy = make(1, 9 * day);
        let held = File::open(&busy).unwrap();
        held.lock().unwrap();
        let newer: Vec<_> = (2..40)
            .map(|number| make(number, day * 2 - day / u32::from(number)))
            .collect();
        store.drop_old_partials().unwrap();
        assert!(!old.exists() && busy.exists());
        assert_eq!(newer.iter().filter(|path| path.exists()).count(), MOST);
    }
}
