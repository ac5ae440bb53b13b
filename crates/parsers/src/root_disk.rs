//! Root disks: an ext4 or EROFS filesystem in a file as the root, without an OCI image.

use std::fmt;
use std::fs::{File, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use micabox_disk::filesystem::of_raw;
use micabox_error::{DiskProblem, Error};
use micabox_ext4::format::features::{compat, incompat, ro_compat};
use micabox_ext4::format::superblock;
use micabox_ext4::format::superblock::{SUPERBLOCK_OFFSET, Superblock};
use micabox_ground::chain;
use micabox_overlay::lower::LowerKind;
use micabox_vmm::MachineFile;
use serde::{Deserialize, Serialize};

use super::{is_wrapped, unwrap};
use crate::{Inspect, Inspected};

/// Bytes of a sector; every disk's size is a multiple of it.
const SECTOR: u64 = 512;

/// Bytes; the size of a persistent memory region is a multiple of it.
const PMEM_UNIT: u64 = 2 << 20;

/// Bytes of a page. Only a filesystem with blocks of this size can be mapped.
const PAGE: u32 = 4096;

/// Magic bytes of formats that can't be booted from, apart from filesystems: offset in bytes, magic,
/// and the format's name in error messages.
const OTHERS: [(u64, &[u8], &str); 15] = [
    (0, b"# Disk Descrip", "a VMDK descriptor"),
    (0, b"vhdxfile", "a VHDX image"),
    (0, b"conectix", "a VHD image"),
    (0x40, b"\x7f\x10\xda\xbe", "a VDI image"),
    (0, b"QED\0", "a QED image"),
    (0, b"WithoutFreeSpace", "a Parallels image"),
    (0, b"\x3a\xff\x26\xed", "an Android sparse image"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x1f\x8b", "compressed with gzip"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (0, b"\xfd7zXZ\0", "compressed with xz"),
    (0, b"BZh", "compressed with bzip2"),
    (0, b"\x04\x22\x4d\x18", "compressed with lz4"),
    (0, b"PK\x03\x04", "compressed, a zip archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "compressed, a 7z archive"),
];

/// A root disk that was checked, with the file that was checked.
#[derive(Clone, Debug)]
pub struct OpenDisk {
    /// What was found on it.
    disk: RootDisk,
    /// Open for writing as well, if the disk is to be written to.
    file: MachineFile,
}

/// A filesystem in a file that is a sandbox's root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootDisk {
    /// The file, absolute.
    pub path: PathBuf,
    /// The filesystem in the file.
    pub format: Format,
    /// Whether changes go into the file itself. Otherwise the file is never written to.
    pub in_place: bool,
    /// Bytes of the file, a multiple of 512.
    pub size: u64,
    /// The filesystem's UUID, in the order of the superblock's bytes.
    pub uuid: [u8; 16],
    /// Why the file can't be mapped into a machine, if it can't.
    #[serde(default)]
    pub unmapped: Option<String>,
    /// The partition of the file that the filesystem is on, if the file is a disk with partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// When the file was changed last: seconds and nanoseconds since 1970-01-01 UTC.
    pub modified: (i64, i64),
}

/// A root disk's filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// ext4, ext3 or ext2.
    Ext4,
    /// EROFS in one file.
    Erofs,
}

impl RootDisk {
    /// Opens a file for use as a root, and inspects which filesystem it holds, and whether a sandbox
    /// can boot from it. With `in_place`, changes go into the file itself.
    ///
    /// # Errors
    /// [`Error::RootDisk`].
    pub fn open(path: &Path, in_place: bool) -> Result<OpenDisk, Error> {
        Self::open_partition(path, in_place, None)
    }

    /// As [`RootDisk::open`]; of a disk with partitions, the one with this number is the root.
    ///
    /// # Errors
    /// [`Error::RootDisk`].
    pub fn open_partition(
        path: &Path,
        in_place: bool,
        partition: Option<u32>,
    ) -> Result<OpenDisk, Error> {
        let failed = |problem| Error::RootDisk {
            path: path.to_owned(),
            problem,
        };
        let unusable = |error: &dyn fmt::Display| failed(DiskProblem::Unusable(error.to_string()));
        let path = path.canonicalize().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => failed(DiskProblem::Missing(error.to_string())),
            _ => unusable(&error),
        })?;
        let opened = if in_place {
            MachineFile::open_for_writing(&path)
        } else {
            MachineFile::open(&path)
        };
        let opened = opened.map_err(|error| match error {
            micabox_vmm::Error::File { why, .. } => unusable(&why),
            error => unusable(&error),
        })?;
        let metadata = opened.file().metadata();
        let metadata = metadata.map_err(|error| unusable(&error))?;
        let (opened, partition) = match filesystem(opened.file()) {
            Some(_) if partition.is_none() => (opened, None),
            None if partition.is_none() && !is_wrapped(opened.file()) => {
                return Err(failed(foreign(opened.file())));
            }
            _ if in_place => return Err(failed(DiskProblem::InImage)),
            _ => {
                let unwrapped = unwrap(opened.file(), &path, partition).map_err(failed)?;
                let file = MachineFile::new(unwrapped.file, &path);
                (file.map_err(|error| unusable(&error))?, unwrapped.partition)
            }
        };
        let file = opened.file();
        let size = file.metadata().map_err(|error| unusable(&error))?.len();
        let mut disk = Self {
            path: path.clone(),
            format: Format::Erofs,
            in_place,
            size,
            uuid: [0; 16],
            unmapped: None,
            partition,
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        };
        match filesystem(file) {
            Some(Format::Ext4) => disk.look_at_ext4(file).map_err(failed)?,
            Some(Format::Erofs) => disk.look_at_erofs(file).map_err(failed)?,
            None => return Err(failed(DiskProblem::Unknown)),
        }
        if !size.is_multiple_of(SECTOR) {
            let problem = format!("its {size} bytes are not a multiple of {SECTOR}");
            return Err(unusable(&problem));
        }
        if !size.is_multiple_of(PMEM_UNIT) {
            disk.unmapped = Some("its size is not a multiple of 2 MiB".into());
        }
        Ok(OpenDisk { disk, file: opened })
    }

    fn look_at_ext4(&mut self, file: &File) -> Result<(), DiskProblem> {
        let unusable = |error: &dyn fmt::Display| DiskProblem::Unusable(error.to_string());
        let mut bytes = [0; Superblock::SIZE];
        file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)
            .map_err(|error| unusable(&error))?;
        let superblock = Superblock::decode(&bytes);
        if is_dirty(&superblock) && !self.in_place {
            let locked = file.try_lock_shared();
            let _ = file.unlock();
            return Err(match locked {
                // One of our sandboxes has it mounted.
                Err(TryLockError::WouldBlock) => DiskProblem::Busy,
                _ => DiskProblem::Dirty,
            });
        }
        // Errors name the unsupported feature.
        inspect(LowerKind::Ext4, file)?;
        if superblock.block_size() != Some(PAGE) {
            self.unmapped = Some("its block size is not 4096 bytes".into());
        } else if superblock.has_incompat(incompat::INLINE_DATA) {
            self.unmapped = Some("files lie inside inodes (inline_data)".into());
        }
        self.format = Format::Ext4;
        self.uuid = superblock.uuid;
        Ok(())
    }

    fn look_at_erofs(&mut self, file: &File) -> Result<(), DiskProblem> {
        if self.in_place {
            return Err(DiskProblem::ReadOnlyFormat);
        }
        let unusable = |text: &str| DiskProblem::Unusable(text.to_owned());
        let found = inspect(LowerKind::Erofs, file)?;
        if found.has_devices {
            return Err(unusable("its files are in other images (extra devices)"));
        }
        if self.size < found.size {
            return Err(unusable("it is shorter than its superblock says"));
        }
        if found.block_size != PAGE {
            self.unmapped = Some("its block size is not 4096 bytes".into());
        }
        self.uuid = found.uuid;
        Ok(())
    }

    /// Inspects the file again. Fails if it is not the same filesystem, or, for a root that is not
    /// written to, if anything about the file has changed.
    pub fn reopen(&self) -> Result<OpenDisk, Error> {
        let now = Self::open_partition(&self.path, self.in_place, self.partition)?;
        let is_same = if self.in_place {
            now.disk.uuid == self.uuid
        } else {
            now.disk == *self
        };
        if is_same {
            Ok(now)
        } else {
            Err(self.failed(DiskProblem::Changed))
        }
    }

    /// Finds the filesystem that this describes in a file that the user names. Format, size and
    /// UUID must agree; path and time may differ.
    pub fn found_at(&self, path: &Path) -> Result<OpenDisk, Error> {
        let found = Self::open_partition(path, false, self.partition)?;
        let identity = |disk: &Self| (disk.format, disk.size, disk.uuid);
        if identity(&found.disk) == identity(self) {
            Ok(found)
        } else {
            Err(found.disk.failed(DiskProblem::Another))
        }
    }

    /// Makes an error of the root disk.
    pub fn failed(&self, problem: DiskProblem) -> Error {
        Error::RootDisk {
            path: self.path.clone(),
            problem,
        }
    }

    /// Makes the error of a root disk that can't be used.
    pub fn unusable(&self, error: impl fmt::Display) -> Error {
        self.failed(DiskProblem::Unusable(error.to_string()))
    }
}

impl OpenDisk {
    /// Returns what the disk was when it was checked.
    pub fn disk(&self) -> &RootDisk {
        &self.disk
    }

    /// Returns the format, and the file as the only one, for reading.
    pub fn lower_files(&self) -> Result<(LowerKind, Vec<File>), Error> {
        let kind = match self.disk.format {
            Format::Erofs => LowerKind::Erofs,
            Format::Ext4 => LowerKind::Ext4,
        };
        let file = self.file.file().try_clone();
        Ok((kind, vec![file.map_err(|error| self.disk.unusable(error))?]))
    }

    /// Locks the file: exclusively if this root is written to, otherwise shared, which keeps
    /// writers out. Returns the locked file for the machine. Each claim has a lock of its own, even
    /// if several are of one open disk.
    pub fn claim(&self) -> Result<(Claim, MachineFile), Error> {
        let opened = self.file.reopen();
        let opened = opened.map_err(|error| self.disk.unusable(error))?;
        let file = opened.file();
        let locked = if self.disk.in_place {
            file.try_lock()
        } else {
            file.try_lock_shared()
        };
        match locked {
            Ok(()) => Ok((Claim::of(Arc::clone(file)), opened)),
            Err(TryLockError::WouldBlock) => Err(self.disk.failed(DiskProblem::Busy)),
            Err(TryLockError::Error(error)) => Err(self.disk.unusable(error)),
        }
    }
}

/// Returns whether a filesystem was not unmounted, so that its journal has to be replayed.
pub fn is_dirty(superblock: &Superblock) -> bool {
    let has_orphans =
        superblock.last_orphan != 0 || superblock.has_ro_compat(ro_compat::ORPHAN_PRESENT);
    superblock.has_compat(compat::HAS_JOURNAL)
        && (superblock.has_incompat(incompat::RECOVER) || has_orphans)
}

/// Inspects a file's filesystem in a worker.
fn inspect(kind: LowerKind, file: &File) -> Result<Inspected, DiskProblem> {
    let file = file
        .try_clone()
        .map_err(|error| DiskProblem::Unusable(error.to_string()))?;
    let found = crate::call(&Inspect { kind }, file, Vec::new(), 0);
    found.map_err(|error| DiskProblem::Unusable(chain(&error)))
}

/// A lock on a root disk's file.
#[derive(Debug)]
pub struct Claim {
    file: Arc<File>,
    /// Another process has taken the claim over.
    is_handed_over: bool,
}

impl Claim {
    fn of(file: Arc<File>) -> Self {
        Self {
            file,
            is_handed_over: false,
        }
    }

    /// Takes over the claim of the creator, from its locked file.
    pub fn taken_over(file: File) -> Self {
        Self::of(Arc::new(file))
    }

    /// The locked file, for a process that takes the claim over.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Leaves the lock to the process that has taken the claim over.
    pub fn hand_over(mut self) {
        self.is_handed_over = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_handed_over {
            return;
        }
        // Closing is not enough: a child that another thread has forked and that has not yet
        // executed its program holds the file open as well.
        let _ = self.file.unlock();
    }
}

/// Offset of the EROFS magic in bytes, and the magic.
const EROFS_MAGIC_AT: u64 = 1024;
const EROFS_MAGIC: [u8; 4] = 0xE0F5_E1E2_u32.to_le_bytes();

/// Whether the file has `bytes` at `offset`.
pub fn starts(file: &File, offset: u64, bytes: &[u8]) -> bool {
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, offset).is_ok() && found == bytes
}

/// Returns the filesystem that a file is, by its magic number. All else is read in the jail.
pub fn filesystem(file: &File) -> Option<Format> {
    let magic = superblock::MAGIC.to_le_bytes();
    if starts(file, SUPERBLOCK_OFFSET + 0x38, &magic) {
        Some(Format::Ext4)
    } else if starts(file, EROFS_MAGIC_AT, &EROFS_MAGIC) {
        Some(Format::Erofs)
    } else {
        None
    }
}

/// Returns whether a file is an ext4 filesystem that was not unmounted.
pub fn is_dirty_ext4(file: &File) -> bool {
    let mut bytes = [0; Superblock::SIZE];
    filesystem(file) == Some(Format::Ext4)
        && file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).is_ok()
        && is_dirty(&Superblock::decode(&bytes))
}

/// Returns why a file without a supported filesystem can't be a root.
pub fn foreign(file: &File) -> DiskProblem {
    let mut others = OTHERS.iter();
    match others.find(|(offset, bytes, _)| starts(file, *offset, bytes)) {
        Some((_, _, name)) => DiskProblem::Foreign(name),
        None => match file.try_clone().ok().and_then(of_raw) {
            Some(kind) => DiskProblem::Contents(format!("it holds {kind}")),
            None => DiskProblem::Unknown,
        },
    }
}

impl From<Format> for micabox_wire::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Ext4 => Self::Ext4,
            Format::Erofs => Self::Erofs,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Erofs => "EROFS",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{hard_link, rename, write};

    use super::*;

    impl OpenDisk {
        /// Opens a file that need not have a filesystem.
        pub fn of_any(path: &Path, in_place: bool) -> Self {
            let file = if in_place {
                MachineFile::open_for_writing(path)
            } else {
                MachineFile::open(path)
            };
            Self {
                disk: RootDisk {
                    path: path.to_owned(),
                    format: Format::Ext4,
                    in_place,
                    size: 0,
                    uuid: [0; 16],
                    unmapped: None,
                    partition: None,
                    modified: (0, 0),
                },
                file: file.unwrap(),
            }
        }
    }

    /// Whether another root disk of this file could be claimed now.
    fn is_free(path: &Path, in_place: bool) -> bool {
        match OpenDisk::of_any(path, in_place).claim() {
            Ok(_) => true,
            Err(Error::RootDisk {
                problem: DiskProblem::Busy,
                ..
            }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_locked_file_is_the_machines_and_the_one_that_was_checked() {
        let directory = tempfile::tempdir().unwrap();
        let [path, other, kept] = ["disk", "other", "kept"].map(|name| directory.path().join(name));
        write(&path, "first").unwrap();
        write(&other, "another").unwrap();
        hard_link(&path, &kept).unwrap();
        let disk = OpenDisk::of_any(&path, true);
        rename(&other, &path).unwrap();

        let (claim, file) = disk.claim().unwrap();
        assert!(Arc::ptr_eq(claim.file(), file.file()));
        file.file().write_all_at(b"FIRST", 0).unwrap();
        assert_eq!(std::fs::read(&kept).unwrap(), b"FIRST");
        assert_eq!(std::fs::read(&path).unwrap(), b"another");
        assert!(!is_free(&kept, true) && !is_free(&kept, false));
        assert!(is_free(&path, true));
        // The machine's file does not outlive the claim's lock, even where it is still open.
        drop(claim);
        assert!(is_free(&kept, true));
    }

    #[test]
    fn one_open_disk_is_written_to_by_one_sandbox() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let disk = OpenDisk::of_any(file.path(), true);
        let first = disk.claim().unwrap();
        let busy = disk.claim().unwrap_err().to_string();
        assert!(busy.contains("another sandbox uses it"), "{busy}");
        drop(first);
        let shared = OpenDisk::of_any(file.path(), false);
        let _both = [shared.claim().unwrap(), shared.claim().unwrap()];
        disk.claim().unwrap_err();
    }
}
