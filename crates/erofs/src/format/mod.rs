//! The on-disk structures, field by field. All numbers are little-endian.
//!
//! Source of the layout: Linux, `fs/erofs/erofs_fs.h`, as of 6.12.

mod checksum;
mod entries;
mod fields;
mod inode;
mod superblock;

pub(crate) use self::checksum::checksum;
pub(crate) use self::entries::*;
pub(crate) use self::inode::*;
pub(crate) use self::superblock::*;

/// Longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes (Linux's `PATH_MAX` less the NUL).
pub const SYMLINK_MAX: usize = 4095;

/// Encodes a device number as inodes store it (Linux's `new_encode_dev`): 12 bits of major
/// and 20 bits of minor number. `None` when one does not fit.
pub fn encode_device(major: u32, minor: u32) -> Option<u32> {
    (major < 1 << 12 && minor < 1 << 20)
        .then_some((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

/// Returns the major and minor number of an encoded device number.
pub fn decode_device(device: u32) -> (u32, u32) {
    (
        (device >> 8) & 0xfff,
        (device & 0xff) | ((device >> 12) & 0xf_ff00),
    )
}
/// The types of inodes, numbered as in directory entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A character device.
    CharDevice = 3,
    /// A block device.
    BlockDevice = 4,
    /// A named pipe.
    Fifo = 5,
    /// A socket.
    Socket = 6,
    /// A symbolic link.
    Symlink = 7,
}

impl FileType {
    const ALL: [Self; 7] = [
        Self::Regular,
        Self::Directory,
        Self::CharDevice,
        Self::BlockDevice,
        Self::Fifo,
        Self::Socket,
        Self::Symlink,
    ];

    /// Returns the type in the bits of a mode.
    pub(crate) fn of_mode(mode: u16) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.mode_bits() == mode & 0o170_000)
    }

    /// Returns the type with this number in directory entries.
    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == number)
    }

    /// Returns the type bits of a mode (`S_IFMT`).
    pub fn mode_bits(self) -> u16 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::Symlink => 0o120_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (8, 256), (4095, 0xf_ffff)] {
            let encoded = encode_device(major, minor).unwrap();
            assert_eq!(decode_device(encoded), (major, minor));
        }
        assert_eq!(encode_device(8, 1), Some(0x801));
        assert_eq!(encode_device(4096, 0), None);
        assert_eq!(encode_device(0, 1 << 20), None);
    }
}
