//! Inodes: `struct ext4_inode`, and Documentation/filesystems/ext4/inodes.rst.

use super::checksum::{crc32c, inode_seed};
use super::fields::{self, record};
use super::superblock::OS_LINUX;
use crate::Timestamp;
use micabox_file::narrow::{low16, low32};

/// `i_mode`: the bits of the type.
pub const S_IFMT: u16 = 0xF000;
/// FIFO.
pub const S_IFIFO: u16 = 0x1000;
/// Character device.
pub const S_IFCHR: u16 = 0x2000;
/// Directory.
pub const S_IFDIR: u16 = 0x4000;
/// Block device.
pub const S_IFBLK: u16 = 0x6000;
/// Regular file.
pub const S_IFREG: u16 = 0x8000;
/// Symbolic link.
pub const S_IFLNK: u16 = 0xA000;
/// Socket.
pub const S_IFSOCK: u16 = 0xC000;

/// `i_flags`.
pub mod flags {
    #![allow(missing_docs, reason = "the names are the field's")]
    pub const SECRM: u32 = 0x1;
    pub const UNRM: u32 = 0x2;
    pub const COMPR: u32 = 0x4;
    pub const SYNC: u32 = 0x8;
    pub const IMMUTABLE: u32 = 0x10;
    pub const APPEND: u32 = 0x20;
    pub const NODUMP: u32 = 0x40;
    pub const NOATIME: u32 = 0x80;
    pub const ENCRYPT: u32 = 0x800;
    /// The directory has a hash tree.
    pub const INDEX: u32 = 0x1000;
    pub const IMAGIC: u32 = 0x2000;
    pub const JOURNAL_DATA: u32 = 0x4000;
    pub const NOTAIL: u32 = 0x8000;
    pub const DIRSYNC: u32 = 0x1_0000;
    pub const TOPDIR: u32 = 0x2_0000;
    /// `i_blocks` counts filesystem blocks.
    pub const HUGE_FILE: u32 = 0x4_0000;
    /// `i_block` is an extent tree.
    pub const EXTENTS: u32 = 0x8_0000;
    pub const VERITY: u32 = 0x10_0000;
    /// The inode holds the value of a large extended attribute.
    pub const EA_INODE: u32 = 0x20_0000;
    pub const DAX: u32 = 0x200_0000;
    /// Contents are in `i_block` and in the attribute `system.data`.
    pub const INLINE_DATA: u32 = 0x1000_0000;
    pub const PROJINHERIT: u32 = 0x2000_0000;
    pub const CASEFOLD: u32 = 0x4000_0000;
}

/// Size in bytes of an inode in the original revision.
pub const GOOD_OLD_SIZE: usize = 128;
/// `i_extra_isize` of this structure: all known fields.
pub const EXTRA_ISIZE: u16 = 32;
const CHECKSUM_LO_OFFSET: usize = 0x7C;
const CHECKSUM_HI_OFFSET: usize = 0x82;
const EXTRA_ISIZE_OFFSET: usize = 0x80;

record! {
    /// An inode, little-endian, without the attributes that may follow within `s_inode_size`.
    /// `extra_isize` determines how many of the fields from `checksum_hi` on exist.
    pub struct RawInode[160, le] {
        /// Type and permissions.
        0x00 mode: u16,
        /// Owner, low half.
        0x02 uid_lo: u16,
        /// Size in bytes, low half.
        0x04 size_lo: u32,
        /// Last access.
        0x08 atime: u32,
        /// Last change of the inode.
        0x0C ctime: u32,
        /// Last change of the contents.
        0x10 mtime: u32,
        /// Time of deletion; the next inode while on the list of orphans.
        0x14 dtime: u32,
        /// Group, low half.
        0x18 gid_lo: u16,
        /// Number of names; 1 for a directory with too many subdirectories to count.
        0x1A links_count: u16,
        /// Number of 512-byte blocks (with [`flags::HUGE_FILE`], of filesystem blocks), low half.
        0x1C blocks_lo: u32,
        /// [`flags`].
        0x20 flags: u32,
        /// `i_version`, low half.
        0x24 version_lo: u32,
        /// Extent tree, block map, device number, symbolic link's target or inline data.
        0x28 block: [u8; 60],
        /// Distinguishes this use of the inode number from earlier ones.
        0x64 generation: u32,
        /// Block of extended attributes, low half.
        0x68 file_acl_lo: u32,
        /// Size in bytes, high half.
        0x6C size_hi: u32,
        /// Unused.
        0x70 obsolete_fragment: u32,
        /// Blocks, high half.
        0x74 blocks_hi: u16,
        /// Block of extended attributes, high half.
        0x76 file_acl_hi: u16,
        /// Owner, high half.
        0x78 uid_hi: u16,
        /// Group, high half.
        0x7A gid_hi: u16,
        /// Checksum, low half.
        0x7C checksum_lo: u16,
        /// Unused.
        0x7E reserved: u16,
        /// Number of bytes after the first 128 that have a meaning.
        0x80 extra_isize: u16,
        /// Checksum, high half.
        0x82 checksum_hi: u16,
        /// Nanoseconds << 2 and two more bits of the seconds.
        0x84 ctime_extra: u32,
        /// Likewise.
        0x88 mtime_extra: u32,
        /// Likewise.
        0x8C atime_extra: u32,
        /// Creation.
        0x90 crtime: u32,
        /// Likewise.
        0x94 crtime_extra: u32,
        /// `i_version`, high half.
        0x98 version_hi: u32,
        /// Project.
        0x9C project: u32,
    }
}

impl RawInode {
    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        u64::from(self.size_lo) | u64::from(self.size_hi) << 32
    }

    /// Sets the size in bytes.
    pub fn set_size(&mut self, size: u64) {
        self.size_lo = low32(size);
        self.size_hi = (size >> 32) as u32;
    }

    /// Returns the `i_blocks` field as stored, 48 bits.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        u64::from(self.blocks_lo) | u64::from(self.blocks_hi) << 32
    }

    /// Sets the `i_blocks` field as stored, 48 bits.
    pub fn set_blocks(&mut self, blocks: u64) {
        self.blocks_lo = low32(blocks);
        self.blocks_hi = low16(blocks >> 32);
    }

    /// Returns the owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        u32::from(self.uid_lo) | u32::from(self.uid_hi) << 16
    }

    /// Sets the owner.
    pub fn set_uid(&mut self, uid: u32) {
        self.uid_lo = low16(uid);
        self.uid_hi = (uid >> 16) as u16;
    }

    /// Returns the group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        u32::from(self.gid_lo) | u32::from(self.gid_hi) << 16
    }

    /// Sets the group.
    pub fn set_gid(&mut self, gid: u32) {
        self.gid_lo = low16(gid);
        self.gid_hi = (gid >> 16) as u16;
    }

    /// Returns the block of extended attributes; 0 for none.
    #[must_use]
    pub fn file_acl(&self) -> u64 {
        u64::from(self.file_acl_lo) | u64::from(self.file_acl_hi) << 32
    }

    /// Sets the block of extended attributes.
    pub fn set_file_acl(&mut self, block: u64) {
        self.file_acl_lo = low32(block);
        self.file_acl_hi = low16(block >> 32);
    }
}

/// Decodes a time of an inode from its two fields: 34 bits of seconds, signed in the low 32, and
/// nanoseconds. The range is 1901 to 2446.
#[must_use]
pub fn decode_time(seconds: u32, extra: u32) -> Timestamp {
    Timestamp {
        seconds: i64::from(seconds.cast_signed()) + (i64::from(extra & 3) << 32),
        nanos: (extra >> 2).min(999_999_999),
    }
}

/// Encodes a time as two fields. A time outside 1901 to 2446 becomes the nearest one inside.
#[must_use]
pub fn encode_time(time: Timestamp) -> (u32, u32) {
    const MIN: i64 = i32::MIN as i64;
    const MAX: i64 = i32::MAX as i64 + (3 << 32);
    let seconds = time.seconds.clamp(MIN, MAX);
    let low = low32(seconds.cast_unsigned());
    let epoch = (seconds - i64::from(low.cast_signed())) >> 32;
    (low, (time.nanos << 2) | low32(epoch.cast_unsigned() & 3))
}

/// Computes the checksum of the encoded inode `bytes` (all `s_inode_size` of them).
#[must_use]
pub fn checksum_of(filesystem_seed: u32, number: u32, bytes: &[u8]) -> u32 {
    let generation: u32 = fields::get(bytes, 0x64);
    let seed = inode_seed(filesystem_seed, number, generation);
    let part = |from: usize, to: usize| bytes.get(from..to).unwrap_or_default();
    let crc = crc32c(seed, part(0, CHECKSUM_LO_OFFSET));
    let crc = crc32c(crc, &[0; 2]);
    let mut crc = crc32c(crc, part(CHECKSUM_LO_OFFSET + 2, GOOD_OLD_SIZE));
    if bytes.len() > GOOD_OLD_SIZE {
        crc = crc32c(crc, part(GOOD_OLD_SIZE, CHECKSUM_HI_OFFSET));
        let rest = if has_checksum_hi(bytes) {
            crc = crc32c(crc, &[0; 2]);
            CHECKSUM_HI_OFFSET + 2
        } else {
            CHECKSUM_HI_OFFSET
        };
        crc = crc32c(crc, part(rest, bytes.len()));
    }
    crc
}

fn has_checksum_hi(bytes: &[u8]) -> bool {
    bytes.len() > GOOD_OLD_SIZE && fields::get::<u16>(bytes, EXTRA_ISIZE_OFFSET) >= 4
}

/// Writes the checksum into the encoded inode `bytes`.
pub fn seal(filesystem_seed: u32, number: u32, bytes: &mut [u8]) {
    let checksum = checksum_of(filesystem_seed, number, bytes);
    fields::put(bytes, CHECKSUM_LO_OFFSET, low16(checksum));
    if has_checksum_hi(bytes) {
        fields::put(bytes, CHECKSUM_HI_OFFSET, (checksum >> 16) as u16);
    }
}

/// Whether the checksum in the encoded inode `bytes` is correct.
#[must_use]
pub fn is_sealed(filesystem_seed: u32, number: u32, bytes: &[u8]) -> bool {
    let checksum = checksum_of(filesystem_seed, number, bytes);
    fields::get::<u16>(bytes, CHECKSUM_LO_OFFSET) == low16(checksum)
        && (!has_checksum_hi(bytes)
            || fields::get::<u16>(bytes, CHECKSUM_HI_OFFSET) == (checksum >> 16) as u16)
}

/// Encodes a device number as the first eight bytes of `i_block`: the old 16-bit form in the first
/// word if it fits, otherwise the new 32-bit form in the second.
#[must_use]
pub fn encode_device(major: u32, minor: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    if major < 256 && minor < 256 {
        fields::put(&mut bytes, 0, (major << 8) | minor);
    } else {
        let new = (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12);
        fields::put(&mut bytes, 4, new);
    }
    bytes
}

/// Decodes the major and minor number from `i_block`.
#[must_use]
pub fn decode_device(block: &[u8]) -> (u32, u32) {
    match fields::get::<u32>(block, 0) {
        0 => {
            let new: u32 = fields::get(block, 4);
            ((new >> 8) & 0xfff, (new & 0xff) | ((new >> 12) & 0xfff00))
        }
        old => ((old >> 8) & 0xff, old & 0xff),
    }
}

/// Whether `creator_os` is Linux, where the high halves of checksum and owner have a meaning.
#[must_use]
pub fn is_linux(creator_os: u32) -> bool {
    creator_os == OS_LINUX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_an_inode_round_trip() {
        for seconds in [
            0,
            -1,
            i64::from(i32::MIN),
            1 << 31,
            1 << 32,
            (1 << 33) + 5,
            15_032_385_535,
        ] {
            let time = Timestamp {
                seconds,
                nanos: 999_999_999,
            };
            let (low, extra) = encode_time(time);
            assert_eq!(decode_time(low, extra), time, "{seconds}");
        }
    }

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [
            (0, 0),
            (1, 3),
            (255, 255),
            (256, 0),
            (8, 256),
            (4095, 1_048_575),
        ] {
            assert_eq!(decode_device(&encode_device(major, minor)), (major, minor));
        }
    }
}
