//! Files of sandboxes that are packed: disks and memories of snapshots, and volumes. What is packed is their bytes, as
//! those of layers are, into chunks that all of them share.
//!
//! In place of a file that is packed there is its list, `<name>.chunks`. A file that is there is what counts, whatever
//! its list says: that is what a process left that was killed, and the next packing or unpacking replaces or removes it.
//! Who replaces one by the other has the list locked.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use micabox_erofs::BLOCK_SIZE;
use micabox_ground::locked::{self, Locked, Mode};
use micabox_pack::{Known, List};

use super::Store;
use super::checksum::Checksum;
use super::chunked::{Chunked, Source, Written};
use super::durable;
use super::error::{Context, Error, Result};
use super::lock::Lock;
use super::pack::Patience;
use super::packed::{self, LayerImage, is_damage, read_list, unreadable};
use super::packs::live_size;
use super::reachability::Reachability;
use super::scratch::Scratch;

/// End of the name of a packed file's list.
const SUFFIX: &str = ".chunks";

/// Name of a file that is unpacked, in a scratch directory.
const FILE: &str = "file";

/// Returns the path of the list that is in place of the file at `path` while that is packed.
#[must_use]
pub fn list_of(path: &Path) -> PathBuf {
    let mut list = OsString::from(path);
    list.push(SUFFIX);
    list.into()
}

/// Returns whether the file at `path` is packed.
#[must_use]
pub fn is_packed_file(path: &Path) -> bool {
    !path.exists() && list_of(path).exists()
}

/// What is known of a packed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedSize {
    /// The file's length in bytes.
    pub length: u64,
    /// Bytes of its chunks in packs, which other files may have as well.
    pub packed: u64,
}

/// Returns what is known of the file at `path`, if it is packed.
///
/// # Errors
///
/// [`Error::Damaged`] if its list is.
pub fn packed_size(path: &Path) -> Result<Option<PackedSize>> {
    if path.exists() {
        return Ok(None);
    }
    let list = read_list(&list_of(path))?;
    Ok(list.map(|list| PackedSize {
        length: list.size(),
        packed: live_size([&list].into_iter()),
    }))
}

/// Packs files, one after the other. No other process packs or removes packs meanwhile.
#[derive(Debug)]
pub struct Packing<'a> {
    store: &'a Store,
    known: Known,
    _lock: Lock,
}

/// A file whose chunks are in packs, and which is still there.
pub struct PackedFile {
    written: Written,
}

/// What became of a file that was to be packed.
#[derive(Debug)]
pub enum FilePacked {
    /// Its chunks are in packs.
    Chunks(PackedFile),
    /// Packing it would save less than an eighth of its space, or than 64 KiB.
    Incompressible,
    /// It changed meanwhile.
    Changed,
}

impl Store {
    /// Begins to pack files; `None` if another process packs, and this one does not wait. A thread that holds
    /// [`Store::shared`] must not.
    ///
    /// # Errors
    ///
    /// Errors of the disk.
    pub fn packing(&self, patience: Patience) -> Result<Option<Packing<'_>>> {
        let Some(lock) = self.lock_of_packing(patience)? else {
            return Ok(None);
        };
        let _shared = self.shared()?;
        let known = self.known(&Reachability::take(self)?);
        Ok(Some(Packing {
            store: self,
            known,
            _lock: lock,
        }))
    }

    /// Makes the file at `path` again, if it is packed, with its holes. Returns whether this call made it.
    ///
    /// If it is killed at any point, the file is packed or whole.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if a chunk is; [`Error::Full`] and other errors of the disk.
    pub fn unpack_file(&self, path: &Path, watch: &mut dyn FnMut(u64, u64)) -> Result<bool> {
        let place = list_of(path);
        let _shared = self.shared()?;
        let Some(_lock) = lock_list(&place)? else {
            return Ok(false);
        };
        if path.try_exists().context("look at", path)? {
            // What a killed process left. The file may have changed since.
            durable::remove_file(&place)?;
            return Ok(false);
        }
        let Some(list) = read_list(&place)? else {
            return Ok(false);
        };
        let size = list.size();
        let image = self.packed_image(list);
        let LayerImage::Packed(image) = image.map_err(|error| unreadable(error, &place))? else {
            return Ok(false);
        };
        let scratch = Scratch::new(&self.layout.tmp())?;
        let (file, new) = (scratch.create(FILE)?, scratch.path(FILE));
        let mode = fs::Permissions::from_mode(0o600);
        file.set_permissions(mode).context("make private", &new)?;
        let watch = &mut |done| watch(done, size);
        let written = packed::write_out(&image, &file, scratch.directory(), watch)?;
        written.map_err(|error| unreadable(error, &place))?;
        file.set_len(size).context("write", &new)?;
        file.sync_all().context("sync", &new)?;
        put(&new, path)?;
        durable::remove_file(&place)?;
        Ok(true)
    }

    /// Opens the file at `path`, which is unpacked before if it is packed.
    ///
    /// # Errors
    ///
    /// As [`Store::unpack_file`]; those of opening the file.
    pub fn open_file(&self, path: &Path) -> Result<File> {
        loop {
            match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_packed_file(path) => {
                    self.unpack_file(path, &mut |_, _| ())?;
                }
                opened => return opened.context("open", path),
            }
        }
    }

    /// Keeps the file at `path` packed while the lock is held; `None` if it has no list.
    ///
    /// # Errors
    ///
    /// Errors of the disk.
    pub fn hold_packed(&self, path: &Path) -> Result<Option<Locked>> {
        lock_list(&list_of(path))
    }

    /// Returns the lists of all files of sandboxes that are packed, or were.
    pub(super) fn file_lists(&self) -> Result<Vec<PathBuf>> {
        let mut lists = Vec::new();
        for kind in [self.layout.sandboxes(), self.layout.volumes()] {
            for name in durable::list(&kind)? {
                let directory = kind.join(name);
                let names = match durable::list(&directory) {
                    // Something that is not the store's.
                    Err(Error::Io { source, .. })
                        if source.kind() == io::ErrorKind::NotADirectory =>
                    {
                        continue;
                    }
                    names => names?.into_iter(),
                };
                let names = names.filter(|name| name.ends_with(SUFFIX));
                lists.extend(names.map(|name| directory.join(name)));
            }
        }
        Ok(lists)
    }

    /// Reads all chunks of a list. The inner error is damage.
    pub(super) fn check_file(&self, list: &List) -> io::Result<std::result::Result<(), String>> {
        let read = || {
            let LayerImage::Packed(image) = self.packed_image(list.clone())? else {
                return Ok(());
            };
            for number in 0..list.chunks().len() {
                image.with_chunk(number, |_| ())?;
            }
            Ok(())
        };
        match read() {
            Err(error) if is_damage(&error) => Ok(Err(error.to_string())),
            read => read.map(Ok),
        }
    }
}

impl Packing<'_> {
    /// Writes the chunks of `file`, which is at `path`, and reads them back. At the path nothing changes.
    ///
    /// # Errors
    ///
    /// Errors of the disk.
    pub fn write(
        &mut self,
        file: &File,
        path: &Path,
        watch: &mut dyn FnMut(u64, u64),
    ) -> Result<FilePacked> {
        let store = self.store;
        let _shared = store.shared()?;
        let length = file.metadata().context("look at", path)?.len();
        if !length.is_multiple_of(BLOCK_SIZE) {
            return Ok(FilePacked::Incompressible);
        }
        let source = Source {
            file,
            path,
            length,
            starts: &[],
        };
        let checksum = Checksum::of_file(file, length).context("read", path)?;
        let is_sound = &|packed: &LayerImage| match packed.checksum(length) {
            Ok(found) => Ok(found == checksum),
            Err(error) if is_damage(&error) => Ok(false),
            Err(error) => Err(unreadable(error, path)),
        };
        let watch = &mut |done| watch(done, length);
        let mut chunked = store.write_packs(&source, &self.known, watch, is_sound)?;
        if matches!(chunked, Chunked::Others) {
            chunked = store.write_packs(&source, &Known::default(), watch, is_sound)?;
        }
        match chunked {
            Chunked::Written(written) => {
                self.known.add(&written.list);
                Ok(FilePacked::Chunks(PackedFile { written }))
            }
            Chunked::TooMany => Ok(FilePacked::Incompressible),
            Chunked::Others => Ok(FilePacked::Changed),
        }
    }
}

impl PackedFile {
    /// Returns the bytes on disk that the file takes.
    #[must_use]
    pub fn before(&self) -> u64 {
        self.written.before
    }

    /// Returns the bytes on disk that its new chunks and its list take.
    #[must_use]
    pub fn added(&self) -> u64 {
        self.written.added
    }

    /// Puts the list in place of the file at `path`, which has to be the one that was packed, with the same bytes, and not
    /// to be used by others any more. If it is killed, the file is there or its list is.
    ///
    /// # Errors
    ///
    /// Errors of the disk; the file may be there or not, and nothing is lost.
    pub fn replace(self, path: &Path) -> Result<()> {
        let (new, place) = (self.written.list_path(), list_of(path));
        // Who unpacks the file takes a list for one that a killed process left if the file is there, and removes it: not
        // this one, then, in place of one that is there now.
        let _old = lock_list(&place)?;
        let list = locked::open(&new).context("open", &new)?;
        let _lock = Locked::wait(list, Mode::Exclusive).context("lock", &new)?;
        put(&new, &place)?;
        durable::remove_file(path)
    }
}

impl std::fmt::Debug for PackedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedFile")
            .field("added", &self.added())
            .finish_non_exhaustive()
    }
}

/// Locks a list; `None` if there is none.
fn lock_list(place: &Path) -> Result<Option<Locked>> {
    loop {
        let list = match locked::open(place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            list => list.context("open", place)?,
        };
        let lock = Locked::wait(list, Mode::Exclusive).context("lock", place)?;
        if lock.is_at(place).context("look at", place)? {
            return Ok(Some(lock));
        }
    }
}

/// Renames a synced file to a place in a directory that there is: that of a snapshot or a volume, which may be removed at
/// any time.
fn put(new: &Path, place: &Path) -> Result<()> {
    fs::rename(new, place).context("publish", place)?;
    let directory = place.parent().unwrap_or(Path::new("."));
    durable::sync_directory(directory)
}

/// Publishes another list in place of a packed file's, unless that was removed meanwhile.
pub(super) fn replace_list(new: &Path, place: &Path) -> Result<()> {
    match put(new, place) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
