//! The properties of a filesystem that never change while the filesystem is open.

use crate::error::{Error, Place, Result};
use crate::format::features::{self, Set, compat, incompat, ro_compat};
use crate::format::superblock::{self, Superblock};
use crate::format::{directory, extent, hash, inode};
use micabox_file::Timestamp;
use micabox_file::narrow::{low32, saturate32};

/// Sizes and positions that follow from the superblock.
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    pub(crate) block_size: usize,
    /// Binary logarithm of the block size.
    pub(crate) block_bits: u32,
    pub(crate) blocks_count: u64,
    pub(crate) first_data_block: u64,
    pub(crate) blocks_per_group: u32,
    pub(crate) inodes_per_group: u32,
    pub(crate) inodes_count: u32,
    pub(crate) inode_size: usize,
    pub(crate) first_inode: u32,
    pub(crate) groups: u32,
    pub(crate) descriptor_size: usize,
    /// Seed of all checksums.
    pub(crate) seed: u32,
    pub(crate) has_checksums: bool,
    pub(crate) has_types: bool,
    pub(crate) has_index: bool,
    pub(crate) has_large_dir: bool,
    pub(crate) unsigned_hash: bool,
    pub(crate) hash_seed: [u32; 4],
    pub(crate) default_hash: u8,
    /// Number of blocks in an allocation unit; 1 except with bigalloc.
    pub(crate) cluster_blocks: u32,
}

/// Incompatible features that this crate can read.
const READABLE: u32 = incompat::FILETYPE
    | incompat::RECOVER
    | incompat::META_BG
    | incompat::EXTENTS
    | incompat::BIT64
    | incompat::MMP
    | incompat::FLEX_BG
    | incompat::EA_INODE
    | incompat::CSUM_SEED
    | incompat::LARGEDIR
    | incompat::INLINE_DATA;

/// Features with which this crate can write.
const WRITABLE: u32 = ro_compat::SPARSE_SUPER
    | ro_compat::LARGE_FILE
    | ro_compat::HUGE_FILE
    | ro_compat::GDT_CSUM
    | ro_compat::DIR_NLINK
    | ro_compat::EXTRA_ISIZE
    | ro_compat::METADATA_CSUM
    | ro_compat::ORPHAN_PRESENT;

impl Geometry {
    /// Checks the superblock for consistency, and against the device's size.
    pub(crate) fn new(superblock: &Superblock, device_size: u64) -> Result<Self> {
        let corrupt = |problem| Place::Superblock.corrupt(problem);
        if superblock.revision > superblock::DYNAMIC_REVISION {
            return Err(Error::Unsupported("a newer revision of the format"));
        }
        let unknown = superblock.feature_incompat & !READABLE;
        if superblock.revision == superblock::DYNAMIC_REVISION && unknown != 0 {
            return Err(Error::Unsupported(
                features::name(Set::Incompat, unknown)
                    .unwrap_or("a feature newer than this program"),
            ));
        }
        let block_size = superblock
            .block_size()
            .ok_or(corrupt("an impossible block size"))? as usize;
        let block_bits = block_size.trailing_zeros();
        let block_bytes = block_size as u64;
        if superblock.has_ro_compat(ro_compat::METADATA_CSUM)
            && superblock.checksum_type != superblock::CHECKSUM_CRC32C
        {
            return Err(Error::Unsupported("an unknown kind of checksum"));
        }
        let blocks_count = superblock.blocks_count();
        let first_data_block = u64::from(superblock.first_data_block);
        if blocks_count
            .checked_mul(block_bytes)
            .is_none_or(|bytes| bytes > device_size)
        {
            return Err(corrupt("the filesystem is larger than its device"));
        }
        let bigalloc = superblock.has_ro_compat(ro_compat::BIGALLOC);
        let cluster_blocks = if bigalloc {
            superblock
                .log_cluster_size
                .checked_sub(superblock.log_block_size)
                .filter(|&bits| bits <= 20)
                .map(|bits| 1 << bits)
                .ok_or(corrupt("an impossible cluster size"))?
        } else {
            1
        };
        let has_boot_block = block_size == 1024 && cluster_blocks == 1;
        if blocks_count <= first_data_block || first_data_block != u64::from(has_boot_block) {
            return Err(corrupt("an impossible number of blocks"));
        }
        let blocks_per_group = superblock.blocks_per_group;
        let bitmap_bits = block_size as u64 * 8;
        if blocks_per_group == 0
            || u64::from(blocks_per_group) > bitmap_bits * u64::from(cluster_blocks)
        {
            return Err(corrupt("an impossible number of blocks in a group"));
        }
        let inode_size = usize::from(superblock.inode_bytes());
        if inode_size < 128 || inode_size > block_size || !inode_size.is_power_of_two() {
            return Err(corrupt("an impossible inode size"));
        }
        // As Linux: the inodes below are the root's and the filesystem's own.
        if superblock.first_file_inode() < superblock::FIRST_INODE {
            return Err(corrupt("an impossible first inode"));
        }
        let inodes_per_group = superblock.inodes_per_group;
        if inodes_per_group == 0 || u64::from(inodes_per_group) > bitmap_bits {
            return Err(corrupt("an impossible number of inodes in a group"));
        }
        let groups = u32::try_from(superblock.groups()).map_err(|_| corrupt("too many groups"))?;
        if u64::from(groups) * u64::from(inodes_per_group) != u64::from(superblock.inodes_count) {
            return Err(corrupt("the number of inodes is not that of all groups"));
        }
        let descriptor_size = usize::from(superblock.descriptor_bytes());
        if !(32..=block_size).contains(&descriptor_size) || !descriptor_size.is_power_of_two() {
            return Err(corrupt("an impossible size of group descriptors"));
        }
        if superblock.has_incompat(incompat::BIT64) && descriptor_size < 64 {
            return Err(corrupt("group descriptors too small for 64-bit numbers"));
        }
        Ok(Self {
            block_size,
            block_bits,
            blocks_count,
            first_data_block,
            blocks_per_group,
            inodes_per_group,
            inodes_count: superblock.inodes_count,
            inode_size,
            first_inode: superblock.first_file_inode(),
            groups,
            descriptor_size,
            seed: superblock.seed(),
            has_checksums: superblock.has_checksums(),
            has_types: superblock.has_incompat(incompat::FILETYPE),
            has_index: superblock.has_compat(compat::DIR_INDEX),
            has_large_dir: superblock.has_incompat(incompat::LARGEDIR),
            unsigned_hash: superblock.flags & superblock::FLAG_UNSIGNED_HASH != 0,
            hash_seed: superblock.hash_seed,
            default_hash: superblock.default_hash,
            cluster_blocks,
        })
    }

    /// Checks that the filesystem can be written; the error gives the reason if not.
    pub(crate) fn writable(superblock: &Superblock) -> Result<()> {
        let unknown = superblock.feature_ro_compat & !WRITABLE;
        if superblock.revision == superblock::DYNAMIC_REVISION && unknown != 0 {
            return Err(Error::ReadOnlyFeature(
                features::name(Set::RoCompat, unknown)
                    .unwrap_or("a feature newer than this program"),
            ));
        }
        if superblock.revision != superblock::DYNAMIC_REVISION
            || !superblock.has_incompat(incompat::EXTENTS | incompat::FILETYPE)
        {
            return Err(Error::ReadOnlyFeature("block maps instead of extents"));
        }
        if superblock.has_incompat(incompat::MMP) {
            return Err(Error::ReadOnlyFeature("mmp"));
        }
        if superblock.has_compat(compat::HAS_JOURNAL) && superblock.journal_inode == 0 {
            return Err(Error::ReadOnlyFeature("an external journal"));
        }
        if hash::Version::from_byte(superblock.default_hash, false).is_none() {
            return Err(Error::ReadOnlyFeature("an unknown directory hash"));
        }
        Ok(())
    }

    /// Returns the group of a block, and the block's index in the group.
    pub(crate) fn group_of(&self, block: u64) -> Option<(u32, u32)> {
        let block = block
            .checked_sub(self.first_data_block)
            .filter(|_| block < self.blocks_count)?;
        let per_group = u64::from(self.blocks_per_group);
        let group = u32::try_from(block / per_group)
            .ok()
            .filter(|&group| group < self.groups)?;
        Some((group, saturate32(block % per_group)))
    }

    /// Returns the first block of a group.
    pub(crate) fn group_start(&self, group: u32) -> u64 {
        self.first_data_block + u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// Returns the number of blocks in a group: fewer in the last.
    pub(crate) fn group_blocks(&self, group: u32) -> u32 {
        let rest = self.blocks_count.saturating_sub(self.group_start(group));
        u32::try_from(rest).map_or(self.blocks_per_group, |rest| {
            rest.min(self.blocks_per_group)
        })
    }

    /// Returns the group of an inode, and the inode's index in the group, from 0.
    pub(crate) fn inode_group(&self, inode: u32) -> Option<(u32, u32)> {
        let index = inode
            .checked_sub(1)
            .filter(|_| inode <= self.inodes_count)?;
        Some((index / self.inodes_per_group, index % self.inodes_per_group))
    }

    /// Returns the number of blocks for `size` bytes, rounded up.
    pub(crate) fn blocks_for(&self, size: u64) -> u64 {
        size.div_ceil(self.block_size as u64)
    }

    /// Encodes a time as an inode's two fields. Inodes of 128 bytes have only the first.
    pub(crate) fn encode_time(&self, time: Timestamp) -> (u32, u32) {
        if self.inode_size > inode::GOOD_OLD_SIZE {
            return inode::encode_time(time);
        }
        let seconds = time.seconds.clamp(i32::MIN.into(), i32::MAX.into());
        (low32(seconds.cast_unsigned()), 0)
    }

    /// Returns the size in bytes of the largest file: limited by block numbers.
    pub(crate) fn max_file_size(&self) -> u64 {
        u64::from(extent::MAX_LOGICAL) << self.block_bits
    }

    /// Returns the number of bytes of a directory block that entries may use.
    pub(crate) fn directory_room(&self) -> usize {
        if self.has_checksums {
            self.block_size - directory::TAIL_SIZE
        } else {
            self.block_size
        }
    }
}
