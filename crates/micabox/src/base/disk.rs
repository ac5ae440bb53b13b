//! A disk image as root: an ext4 or EROFS filesystem in a file, without an OCI image.

use std::fmt;
use std::fs::{File, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use micabox_ext4::format::features::{compat, incompat, ro_compat};
use micabox_ext4::format::superblock::{self, SUPERBLOCK_OFFSET, Superblock};
use micabox_overlay::lower::LowerKind;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::error::chain;
use crate::jailed::{self, Inspect, Inspected};

/// Bytes of a sector, of which every disk is a multiple.
const SECTOR: u64 = 512;

/// Bytes of which a persistent memory is a multiple.
const PMEM_UNIT: u64 = 2 << 20;

/// Bytes of a page, which is what a filesystem's blocks must be to be mapped.
const PAGE: u32 = 4096;

/// What begins like this, and where, in bytes, is no filesystem that can be booted from.
const OTHERS: [(u64, &[u8], &str); 11] = [
    (0, b"QFI\xfb", "a qcow2 image"),
    (0, b"KDMV", "a VMDK image"),
    (0, b"# Disk Descrip", "a VMDK descriptor"),
    (0, b"vhdxfile", "a VHDX image"),
    (0, b"hsqs", "a squashfs image"),
    (0, b"XFSB", "an XFS filesystem"),
    (0, b"\x1f\x8b", "compressed with gzip"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (0, b"\xfd7zXZ\0", "compressed with xz"),
    (0x8001, b"CD001", "an ISO 9660 image"),
    (0x1_0040, b"_BHRfS_M", "a btrfs filesystem"),
];

/// A filesystem in a file that a sandbox has as its root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootDisk {
    /// The file, absolute.
    pub path: PathBuf,
    /// What it holds.
    pub format: Format,
    /// Whether changes go into the file itself. Otherwise it stays as it is.
    pub in_place: bool,
    /// Bytes of the file, a multiple of 512.
    pub size: u64,
    /// The filesystem's UUID, in the order of the superblock's bytes.
    pub uuid: [u8; 16],
    /// Why it can't be mapped into a machine, if it can't.
    #[serde(default)]
    pub(crate) unmapped: Option<String>,
    /// When the file was changed last: seconds and nanoseconds since 1970-01-01 UTC.
    pub(crate) modified: (i64, i64),
}

/// A root disk's filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// ext4, ext3 or ext2.
    Ext4,
    /// EROFS, uncompressed, in one file.
    Erofs,
}

/// Why a file can't be a root.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskProblem {
    /// It can't be read, or is damaged, or needs what nobody has.
    #[error("{0}")]
    Unusable(String),
    /// It has another kind of contents.
    #[error("it is {0}")]
    Foreign(&'static str),
    /// It is a whole disk.
    #[error("it has a partition table ({0}), and only a filesystem can be a root")]
    Partitioned(&'static str),
    /// It has none of the filesystems that can be booted from.
    #[error("it holds neither an ext4 nor an EROFS filesystem")]
    Unknown,
    /// It was not unmounted, and nobody may write to it.
    #[error("it was not unmounted: its journal has changes that a read-only root would lack")]
    Dirty,
    /// Nobody can write to this format.
    #[error("EROFS can't be written to")]
    ReadOnlyFormat,
    /// Somebody else writes to it, or reads it while it was to be written to.
    #[error("another sandbox uses it")]
    Busy,
    /// It is another one than it was.
    #[error("it has changed since the sandbox was made, whose changes are to what it was")]
    Changed,
    /// It is not the one that an imported snapshot was made with.
    #[error("it is not the root disk of the snapshot: format, size or UUID differ")]
    Another,
}

impl RootDisk {
    /// Opens it for reading.
    pub(crate) fn lower_files(&self) -> Result<(LowerKind, Vec<File>), Error> {
        let file = File::open(&self.path).map_err(|error| self.unusable(error))?;
        let kind = match self.format {
            Format::Erofs => LowerKind::Erofs,
            Format::Ext4 => LowerKind::Ext4,
        };
        Ok((kind, vec![file]))
    }

    /// Looks at a file that is to be a root: what it holds, and whether that can be booted
    /// from. Changes go elsewhere unless they are to be made `in_place`.
    ///
    /// # Errors
    /// [`Error::RootDisk`].
    pub fn open(path: &Path, in_place: bool) -> Result<Self, Error> {
        let failed = |problem| Error::RootDisk {
            path: path.to_owned(),
            problem,
        };
        let unusable = |error: &dyn fmt::Display| failed(DiskProblem::Unusable(error.to_string()));
        let path = path.canonicalize().map_err(|error| unusable(&error))?;
        let metadata = path.metadata().map_err(|error| unusable(&error))?;
        if !metadata.is_file() {
            return Err(unusable(&"it is not a regular file"));
        }
        let mut options = File::options();
        let file = options.read(true).write(in_place).open(&path);
        let file = file.map_err(|error| unusable(&error))?;
        let size = metadata.len();
        let mut disk = Self {
            path: path.clone(),
            format: Format::Erofs,
            in_place,
            size,
            uuid: [0; 16],
            unmapped: None,
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        };
        if starts(
            &file,
            SUPERBLOCK_OFFSET + 0x38,
            &superblock::MAGIC.to_le_bytes(),
        ) {
            disk.look_at_ext4(file).map_err(failed)?;
        } else if starts(&file, EROFS_MAGIC_AT, &EROFS_MAGIC) {
            disk.look_at_erofs(file).map_err(failed)?;
        } else {
            return Err(failed(foreign(&file)));
        }
        if !size.is_multiple_of(SECTOR) {
            let problem = format!("its {size} bytes are no multiple of {SECTOR}, as a disk's are");
            return Err(unusable(&problem));
        }
        if !size.is_multiple_of(PMEM_UNIT) {
            disk.unmapped = Some("its size is no multiple of 2 MiB".into());
        }
        Ok(disk)
    }

    fn look_at_ext4(&mut self, file: File) -> Result<(), DiskProblem> {
        let unusable = |error: &dyn fmt::Display| DiskProblem::Unusable(error.to_string());
        let mut bytes = [0; Superblock::SIZE];
        file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)
            .map_err(|error| unusable(&error))?;
        let superblock = Superblock::decode(&bytes);
        let has_orphans =
            superblock.last_orphan != 0 || superblock.has_ro_compat(ro_compat::ORPHAN_PRESENT);
        let is_dirty = superblock.has_compat(compat::HAS_JOURNAL)
            && (superblock.has_incompat(incompat::RECOVER) || has_orphans);
        if is_dirty && !self.in_place {
            let locked = file.try_lock_shared();
            let _ = file.unlock();
            return Err(match locked {
                // It is mounted by one of ours.
                Err(TryLockError::WouldBlock) => DiskProblem::Busy,
                _ => DiskProblem::Dirty,
            });
        }
        // By name, what cannot be read here.
        inspect(LowerKind::Ext4, file)?;
        if superblock.block_size() != Some(PAGE) {
            self.unmapped = Some("its blocks are not of 4096 bytes".into());
        } else if superblock.has_incompat(incompat::INLINE_DATA) {
            self.unmapped = Some("files lie inside inodes (inline_data)".into());
        }
        self.format = Format::Ext4;
        self.uuid = superblock.uuid;
        Ok(())
    }

    fn look_at_erofs(&mut self, file: File) -> Result<(), DiskProblem> {
        if self.in_place {
            return Err(DiskProblem::ReadOnlyFormat);
        }
        let unusable = |text: &str| DiskProblem::Unusable(text.to_owned());
        let found = inspect(LowerKind::Erofs, file)?;
        if found.has_devices {
            return Err(unusable(
                "its files lie in other images, on devices of its own",
            ));
        }
        if self.size < found.size {
            return Err(unusable("it is shorter than its superblock says"));
        }
        self.uuid = found.uuid;
        Ok(())
    }

    /// The same once more, if it is still the same.
    pub(crate) fn again(&self) -> Result<Self, Error> {
        let now = Self::open(&self.path, self.in_place)?;
        let is_same = match self.in_place {
            true => now.uuid == self.uuid,
            false => now == *self,
        };
        match is_same {
            true => Ok(now),
            false => Err(self.failed(DiskProblem::Changed)),
        }
    }

    /// The filesystem that this describes, in a file that the user names: elsewhere, it has
    /// another path and another time.
    pub(crate) fn found_at(&self, path: &Path) -> Result<Self, Error> {
        let found = Self::open(path, false)?;
        let identity = |disk: &Self| (disk.format, disk.size, disk.uuid);
        if identity(&found) == identity(self) {
            Ok(found)
        } else {
            Err(found.failed(DiskProblem::Another))
        }
    }

    /// Keeps others from writing to it, or from using it if it is to be written to.
    pub(crate) fn claim(&self) -> Result<Claim, Error> {
        let file = File::open(&self.path).map_err(|error| self.unusable(error))?;
        let locked = match self.in_place {
            true => file.try_lock(),
            false => file.try_lock_shared(),
        };
        match locked {
            Ok(()) => Ok(Claim::of(file)),
            Err(TryLockError::WouldBlock) => Err(self.failed(DiskProblem::Busy)),
            Err(TryLockError::Error(error)) => Err(self.unusable(error)),
        }
    }

    pub(crate) fn failed(&self, problem: DiskProblem) -> Error {
        Error::RootDisk {
            path: self.path.clone(),
            problem,
        }
    }

    pub(crate) fn unusable(&self, error: impl fmt::Display) -> Error {
        self.failed(DiskProblem::Unusable(error.to_string()))
    }
}

/// What a worker finds a file's filesystem to be.
fn inspect(kind: LowerKind, file: File) -> Result<Inspected, DiskProblem> {
    let found = jailed::call(&Inspect { kind }, file, Vec::new(), 0);
    found.map_err(|error| DiskProblem::Unusable(chain(&error)))
}

/// A hold on a root disk.
#[derive(Debug)]
pub(crate) struct Claim {
    file: File,
    /// Another process has it.
    is_handed_over: bool,
}

impl Claim {
    fn of(file: File) -> Self {
        Self {
            file,
            is_handed_over: false,
        }
    }

    /// That of a creator that handed it over.
    pub(crate) fn taken_over(file: File) -> Self {
        Self::of(file)
    }

    /// The locked file, for a process that takes the claim over.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Leaves it to the process that has taken it over.
    pub(crate) fn hand_over(mut self) {
        self.is_handed_over = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_handed_over {
            return;
        }
        // Closing is not enough: a child that another thread has made and that has not yet
        // executed its program holds the file as well.
        let _ = self.file.unlock();
    }
}

/// Where EROFS says what it is, in bytes, and how.
const EROFS_MAGIC_AT: u64 = 1024;
const EROFS_MAGIC: [u8; 4] = 0xE0F5_E1E2_u32.to_le_bytes();

/// Whether the file has `bytes` at `offset`.
fn starts(file: &File, offset: u64, bytes: &[u8]) -> bool {
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, offset).is_ok() && found == bytes
}

/// What a file without a filesystem for us is.
fn foreign(file: &File) -> DiskProblem {
    if starts(file, SECTOR, b"EFI PART") || starts(file, 4096, b"EFI PART") {
        return DiskProblem::Partitioned("GPT");
    }
    let known = OTHERS.iter();
    let mut known = known.filter(|(offset, bytes, _)| starts(file, *offset, bytes));
    if let Some((_, _, name)) = known.next() {
        return DiskProblem::Foreign(name);
    }
    // Boot sectors of some filesystems end like a partition table; so one partition at
    // least must have a type.
    let types = (0..4).map(|index| 446 + 16 * index + 4);
    let is_typed = |at: u64| {
        let mut kind = [0];
        file.read_exact_at(&mut kind, at).is_ok() && kind != [0]
    };
    if starts(file, 510, &[0x55, 0xaa]) && types.into_iter().any(is_typed) {
        return DiskProblem::Partitioned("MBR");
    }
    DiskProblem::Unknown
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
