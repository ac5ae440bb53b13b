//! What a part of a disk holds, by its magic bytes.

use std::fmt;

use crate::{Disk, ReadAt, Result};

/// What a part of a disk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// ext4, ext3 or ext2.
    Ext4,
    /// EROFS.
    Erofs,
    /// Something else that may be a root, by its name.
    Other(&'static str),
    /// What is no root: EFI's partition, space for swapping.
    NoRoot(&'static str),
}

/// Offsets and magic bytes.
const MAGIC: [(u64, &[u8], Kind); 18] = [
    (1080, b"\x53\xef", Kind::Ext4),
    (1024, b"\xe2\xe1\xf5\xe0", Kind::Erofs),
    (0, b"XFSB", Kind::Other("XFS")),
    (0x1_0040, b"_BHRfS_M", Kind::Other("btrfs")),
    (0, b"hsqs", Kind::Other("squashfs")),
    (512, b"LABELONE", Kind::Other("LVM")),
    (0, b"LUKS\xba\xbe", Kind::Other("LUKS")),
    (1024, b"\x10\x20\xf5\xf2", Kind::Other("F2FS")),
    (3, b"NTFS    ", Kind::Other("NTFS")),
    (3, b"EXFAT   ", Kind::NoRoot("exFAT")),
    (0x8001, b"CD001", Kind::Other("ISO 9660")),
    (0x1_0034, b"ReIsEr", Kind::Other("ReiserFS")),
    (
        0x1018,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca",
        Kind::Other("bcachefs"),
    ),
    (0x2_1000, b"\x0c\xb1\xba\0\0\0\0\0", Kind::Other("ZFS")),
    (0x1000, b"\xfc\x4e\x2b\xa9", Kind::Other("a part of a RAID")),
    (4086, b"SWAPSPACE2", Kind::NoRoot("swap")),
    (82, b"FAT32", Kind::NoRoot("FAT")),
    (54, b"FAT1", Kind::NoRoot("FAT")),
];

impl Kind {
    /// Returns whether mica reads it.
    #[must_use]
    pub fn is_read(self) -> bool {
        matches!(self, Self::Ext4 | Self::Erofs)
    }

    pub(crate) fn may_be_root(self) -> bool {
        !matches!(self, Self::NoRoot(_))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Erofs => "EROFS",
            Self::Other(name) | Self::NoRoot(name) => name,
        })
    }
}

/// Returns what a file that is a disk, byte by byte, holds.
pub fn of_raw<S: ReadAt>(file: S) -> Option<Kind> {
    let mut disk = Disk::raw(file).ok()?;
    let size = disk.size();
    at(&mut disk, 0, size).ok().flatten()
}

/// Returns what is on a disk from an offset on.
///
/// # Errors
/// [`Error`](crate::Error).
pub fn at<S: ReadAt>(disk: &mut Disk<S>, start: u64, length: u64) -> Result<Option<Kind>> {
    for (offset, magic, kind) in MAGIC {
        if offset + magic.len() as u64 > length {
            continue;
        }
        let mut found = vec![0; magic.len()];
        disk.read(start + offset, &mut found)?;
        if found == magic {
            return Ok(Some(kind));
        }
    }
    Ok(None)
}
