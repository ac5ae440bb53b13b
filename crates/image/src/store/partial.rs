//! Keeps the first bytes of blobs whose pull was killed or given up, so that the next pull fetches
//! only the rest.
//!
//! Each is a file in `tmp`, named by the blob's digest and locked while a pull uses it. Its bytes
//! are not trusted: the blob's digest is computed over them and the rest, and a pull that finds it
//! wrong starts over without them. Of a blob that is to be [kept](super::KeptBlob), the file gets its place once all of
//! it is here and right.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use micabox_ground::locked::{Locked, Mode};

use super::Store;
use super::durable;
use super::error::{Context, Error, Result, explain};
use micabox_oci::{Digest, HashingWriter};

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
    /// Digest of the whole blob.
    blob: Digest,
    /// Bytes in the file, which are the blob's first ones.
    length: u64,
    end: End,
}

/// What becomes of a blob's start once all of the blob was read and found right.
#[derive(Debug)]
enum End {
    /// It is removed.
    Dropped,
    /// It gets this place.
    Kept(PathBuf),
    /// It has its place already.
    Stays,
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
        // One that was kept meanwhile is another file by now.
        if !file.is_at(&path).ok()? {
            return None;
        }
        let length = length_within(&file, size).ok()?;
        Some(Partial {
            file,
            path,
            blob: *blob,
            length,
            end: End::Dropped,
        })
    }

    /// Opens the start of a blob of `size` bytes that is to be kept, which may be empty or all of it. Waits while another
    /// pull has it. The caller must hold the shared lock.
    ///
    /// # Errors
    ///
    /// Errors of the disk.
    pub fn partial_to_keep(&self, blob: &Digest, size: u64) -> Result<Partial> {
        let place = self.layout.kept_blob(blob);
        let path = self.layout.tmp().join(blob.hex() + SUFFIX);
        loop {
            if fs::metadata(&place).is_ok_and(|kept| kept.len() == size) {
                let file = fs::File::open(&place).context("open", &place)?;
                let file = Locked::wait(file, Mode::Shared).context("lock", &place)?;
                return Ok(Partial {
                    file,
                    path: place,
                    blob: *blob,
                    length: size,
                    end: End::Stays,
                });
            }
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let file = options.mode(0o600).open(&path).context("open", &path)?;
            let file = Locked::wait(file, Mode::Exclusive).context("lock", &path)?;
            // Another pull has given it its place, or removed it.
            if !file.is_at(&path).context("look at", &path)? {
                continue;
            }
            let length = length_within(&file, size).context("look at", &path)?;
            return Ok(Partial {
                file,
                path,
                blob: *blob,
                length,
                end: End::Kept(place),
            });
        }
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

/// Returns a file's length, after emptying it if it is too long to be the start of a blob of `size` bytes.
fn length_within(file: &Locked, size: u64) -> io::Result<u64> {
    let length = file.file().metadata()?.len();
    if length <= size {
        return Ok(length);
    }
    file.file().set_len(0)?;
    Ok(0)
}

/// Returns the digest of a file.
fn digest_of(mut file: &fs::File) -> io::Result<Digest> {
    let mut out = HashingWriter::new(io::sink());
    file.rewind()?;
    io::copy(&mut file, &mut out)?;
    Ok(out.finish().1)
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
        if matches!(self.end, End::Stays) {
            // What comes behind all of it belongs to no blob.
            return Ok(());
        }
        self.file.file().write_all_at(bytes, self.length)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Removes it, unless it is a whole blob in its place, with its digest: what uses it next may be another image.
    fn remove_if_wrong(&self) {
        let is_right = matches!(self.end, End::Stays)
            && digest_of(self.file.file()).is_ok_and(|found| found == self.blob);
        if !is_right {
            self.remove();
        }
    }

    /// Ends a blob that was read and found right.
    fn complete(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.end, End::Stays) {
            End::Dropped => self.remove(),
            End::Stays => {}
            End::Kept(place) => {
                let synced = self.file.file().sync_all();
                let kept = synced
                    .context("sync", &self.path)
                    .and_then(|()| durable::publish(&self.path, &place));
                if kept.is_err() {
                    self.remove();
                }
                kept?;
            }
        }
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.length == 0 && !matches!(self.end, End::Stays) {
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
    /// Why the blob can't be kept that is to be.
    failed: Option<Error>,
}

impl<R> Keeping<R> {
    /// Starts with `partial`; `rest` is the blob's bytes after it.
    pub fn new(partial: Option<Partial>, rest: R) -> Self {
        Self {
            kept: partial.as_ref().map_or(0, Partial::length),
            again: 0,
            partial,
            rest,
            failed: None,
        }
    }

    /// Ends the blob, of which all was read and found right: it is kept if it is to be.
    ///
    /// # Errors
    ///
    /// Errors of the disk; nothing is kept then.
    pub fn complete(mut self) -> Result<()> {
        self.partial.as_mut().map_or(Ok(()), Partial::complete)
    }

    /// Returns why the blob can't be kept, if that is why a read failed.
    pub fn failure(&mut self) -> Option<Error> {
        self.failed.take()
    }

    /// Ends a blob that was not read to its end, or is wrong. Its start stays only if `keep`: another pull may continue
    /// from there then. A whole blob that is kept and right stays as well. Returns whether anything does.
    pub fn end(self, keep: bool) -> bool {
        let Some(partial) = &self.partial else {
            return false;
        };
        if !keep {
            partial.remove_if_wrong();
        }
        partial.file.is_at(&partial.path).unwrap_or_default()
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
            && let Err(error) = partial.append(&buffer[..count])
        {
            partial.remove();
            let error = explain(error, "write", &partial.path);
            // On a full disk the start of a blob is dispensable, unless all of it is to be kept.
            if let Some(Partial {
                end: End::Kept(_), ..
            }) = self.partial.take()
            {
                self.failed = Some(error);
                return Err(io::Error::other("the blob can't be kept"));
            }
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
        if keep {
            keeping.end(true);
        } else {
            keeping.complete().unwrap();
        }
        all
    }

    #[test]
    fn a_blob_that_is_kept_gets_its_place_when_all_of_it_is_here() {
        let (_directory, store) = store();
        for bytes in [&b"small"[..], b""] {
            let (digest, size) = (Digest::of(bytes), bytes.len() as u64);
            let to_keep = || store.partial_to_keep(&digest, size).unwrap();
            let (first, rest) = bytes.split_at(bytes.len() / 2);
            assert_eq!(read(Some(to_keep()), first, true), first);
            assert!(!store.has_blob(&digest, size));
            let partial = to_keep();
            assert_eq!(partial.length(), first.len() as u64);
            let waiting = std::thread::scope(|scope| {
                // It waits for the other one, and finds what that has kept.
                let waiting = scope.spawn(to_keep);
                assert_eq!(read(Some(partial), rest, false), bytes);
                waiting.join().unwrap()
            });
            assert_eq!(waiting.length(), size);
            assert_eq!(read(Some(waiting), b"", false), bytes);
            assert!(store.has_blob(&digest, size) && !store.has_blob(&digest, size + 1));
            assert!(store.partials().unwrap().is_empty());
            let mut kept = Vec::new();
            let mut blob = store.kept_blob(&digest).unwrap().unwrap();
            blob.read_to_end(&mut kept).unwrap();
            assert_eq!(kept, bytes);
        }
    }

    #[test]
    fn what_is_no_blob_by_its_digest_is_not_read_to_its_end() {
        let (_directory, store) = store();
        let digest = Digest::of(b"blob");
        assert_eq!(
            read(store.partial_to_keep(&digest, 4).ok(), b"blub", false),
            b"blub"
        );
        let mut blob = store.kept_blob(&digest).unwrap().unwrap();
        let error = blob.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(matches!(blob.explain(error), Error::Damaged { .. }));
        // A pull that finds that removes it.
        Keeping::new(store.partial_to_keep(&digest, 4).ok(), io::empty()).end(false);
        assert!(store.kept_blob(&digest).unwrap().is_none());
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
