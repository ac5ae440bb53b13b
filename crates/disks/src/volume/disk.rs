//! A volume's disk: how it is made, locked and grown.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use micabox_error::{Error, Source, random};
use micabox_ext4::{Ext4, Options, Owner, ROOT};
use micabox_vmm::MachineFile;

use super::{DATA, MIN_VOLUME_SIZE, Volume};
use crate::upper;

/// The filesystem's label.
const LABEL: [u8; 16] = *b"mica-volume\0\0\0\0\0";

/// Bytes of a block; a disk's size is a multiple of it.
const BLOCK: u64 = 4096;

/// Most bytes of a volume: what ext4 can address with blocks of 4096 bytes and numbers of 32 bits.
const MOST: u64 = 16 << 40;

/// Returns the size for a disk of at least `size` bytes.
pub(super) fn checked(name: &str, size: u64) -> Result<u64, Error> {
    let problem = if size < MIN_VOLUME_SIZE {
        format!("it needs at least {} MiB", MIN_VOLUME_SIZE >> 20)
    } else if size > MOST {
        format!("it can have {} TiB at most", MOST >> 40)
    } else {
        return Ok(size.next_multiple_of(BLOCK));
    };
    let name = name.to_owned();
    Err(Error::VolumeSize { name, problem })
}

/// Makes a disk with an empty directory for the sandboxes' files.
pub(super) fn make(path: &Path, size: u64) -> Result<(), Error> {
    upper::make_disk(path, size, random()?, LABEL)?;
    let unusable = |source: Source| Error::Disk {
        what: "making",
        path: path.to_owned(),
        source,
    };
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| unusable(error.into()))?;
    let fill = || -> micabox_ext4::Result<File> {
        let mut filesystem = Ext4::open(file, Options::default())?;
        filesystem.mkdir(ROOT, DATA.as_bytes(), Owner::root(0o755))?;
        filesystem.close()
    };
    let file = fill().map_err(|error| unusable(error.into()))?;
    file.sync_all().map_err(|error| unusable(error.into()))
}

/// Opens and locks the disk: exclusively and for writing, or shared and for reading. None if what
/// uses it doesn't allow that.
///
/// The lock is released when the last duplicate of the returned file is closed.
pub(super) fn lock(volume: &Volume, is_shared: bool) -> Result<Option<MachineFile>, Error> {
    let path = volume.disk();
    let opened = if is_shared {
        MachineFile::open(&path)
    } else {
        MachineFile::open_for_writing(&path)
    }?;
    let file = opened.file();
    let locked = if is_shared {
        file.try_lock_shared()
    } else {
        file.try_lock()
    };
    match locked {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(Error::state("locking", &path)(error)),
    }
    // It may have been removed, and another one made, before it was locked.
    let ours = file.metadata().map_err(Error::state("reading", &path))?;
    match path.metadata() {
        Ok(now) if (now.dev(), now.ino()) == (ours.dev(), ours.ino()) => Ok(Some(opened)),
        _ => Err(Error::NoSuchVolume(volume.name.clone())),
    }
}

/// Opens a disk that is locked exclusively for reading, and locks it shared. None if what uses it doesn't allow that.
pub(super) fn reader(volume: &Volume, disk: &MachineFile) -> Result<Option<MachineFile>, Error> {
    // A worker that has just replied has the file open for a moment longer, with the same lock: that becomes a shared one.
    match disk.file().try_lock_shared() {
        Ok(()) => lock(volume, true),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(Error::state("locking", &volume.disk())(error)),
    }
}

/// Grows the disk, and the filesystem on it, to `size` bytes.
pub(super) fn grow(volume: &Volume, disk: &MachineFile, size: u64) -> Result<(), Error> {
    let path = volume.disk();
    let unusable = |source: Source| Error::Disk {
        what: "growing",
        path: path.clone(),
        source,
    };
    let length = disk.length();
    if size < length {
        return Err(Error::VolumeSize {
            name: volume.name.clone(),
            problem: format!("it has {length} bytes, and a volume can't shrink"),
        });
    }
    let file = disk.file();
    let grow = || -> Result<(), Source> {
        file.set_len(size)?;
        micabox_parsers::ext4::grow(file.try_clone()?, size)?;
        file.sync_all()?;
        Ok(())
    };
    grow().map_err(|error| {
        let _ = file.set_len(length);
        unusable(error)
    })
}

#[cfg(test)]
mod tests {
    use micabox_image::Store;

    use super::*;
    use crate::Volumes;
    use micabox_state::Sandboxes;

    #[test]
    fn a_reader_has_its_lock_while_a_worker_has_the_file_open() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let sandboxes = Sandboxes::open(&store).unwrap();
        let size = MIN_VOLUME_SIZE;
        let volumes = Volumes(&sandboxes);
        let volume = volumes.create("data", size, <_>::default()).unwrap();
        let disk = lock(&volume, false).unwrap().unwrap();
        let worker = disk.file().try_clone().unwrap();
        assert!(lock(&volume, true).unwrap().is_none());
        let reader = reader(&volume, &disk).unwrap().unwrap();
        drop(disk);
        assert!(lock(&volume, false).unwrap().is_none());
        drop((worker, reader));
        assert!(lock(&volume, false).unwrap().is_some());
    }
}
