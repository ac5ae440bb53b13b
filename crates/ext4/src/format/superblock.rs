//! The superblock: `struct ext4_super_block` of the kernel's `fs/ext4/ext4.h`, and the kernel's
//! Documentation/filesystems/ext4/super.rst.

use super::checksum::crc32c;
use super::features::{compat, incompat, ro_compat};
use super::fields::{self, record};
use micabox_file::narrow::low32;

/// Position of the first superblock in bytes.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xEF53;
/// `s_state`: unmounted cleanly.
pub const STATE_VALID: u16 = 0x1;
/// `s_state`: errors were found.
pub const STATE_ERROR: u16 = 0x2;
/// `s_state`: the cleanup of orphans is in progress.
pub const STATE_ORPHANS: u16 = 0x4;
/// `s_flags`: the directory hash treats names as signed characters.
pub const FLAG_SIGNED_HASH: u32 = 0x1;
/// `s_flags`: the directory hash treats names as unsigned characters.
pub const FLAG_UNSIGNED_HASH: u32 = 0x2;
/// `s_checksum_type`: CRC-32C.
pub const CHECKSUM_CRC32C: u8 = 1;
/// `s_rev_level`: inode size and feature words exist.
pub const DYNAMIC_REVISION: u32 = 1;
/// `s_creator_os`.
pub const OS_LINUX: u32 = 0;
/// Default first inode that is not reserved.
pub const FIRST_INODE: u32 = 11;
/// The root directory's inode.
pub const ROOT_INODE: u32 = 2;
/// The inode that holds blocks for growing the descriptor table.
pub const RESIZE_INODE: u32 = 7;
/// The journal's usual inode.
pub const JOURNAL_INODE: u32 = 8;
/// End of the bytes that the checksum covers: it does not cover itself.
const CHECKSUM_OFFSET: usize = 0x3FC;
/// Fields that record errors: `s_error_count` up to `s_mount_opts`, and high bits of times with the
/// kinds.
const ERROR_FIELDS: [core::ops::Range<usize>; 2] = [0x194..0x200, 0x278..0x27C];

record! {
    /// The superblock, little-endian, 1024 bytes at [`SUPERBLOCK_OFFSET`] of the device and at the
    /// start of every group that has a backup. Times are seconds of the Unix epoch, with eight more
    /// high bits in the `_hi` fields.
    pub struct Superblock[1024, le] {
        /// Number of inodes in all groups.
        0x00 inodes_count: u32,
        /// Blocks, low half.
        0x04 blocks_count_lo: u32,
        /// Blocks that only root may use, low half.
        0x08 reserved_blocks_lo: u32,
        /// Free blocks (with bigalloc: clusters), low half.
        0x0C free_blocks_lo: u32,
        /// Free inodes.
        0x10 free_inodes: u32,
        /// First block of group 0: 1 with 1 KiB blocks, otherwise 0.
        0x14 first_data_block: u32,
        /// Block size is 1024 << this.
        0x18 log_block_size: u32,
        /// Cluster size is 1024 << this.
        0x1C log_cluster_size: u32,
        /// Blocks in a group.
        0x20 blocks_per_group: u32,
        /// Clusters in a group.
        0x24 clusters_per_group: u32,
        /// Inodes in a group.
        0x28 inodes_per_group: u32,
        /// Time of the last mount.
        0x2C mount_time: u32,
        /// Time of the last write.
        0x30 write_time: u32,
        /// Mounts since the last check.
        0x34 mount_count: u16,
        /// Number of mounts after which to check; 0xFFFF for never.
        0x36 max_mount_count: u16,
        /// [`MAGIC`].
        0x38 magic: u16,
        /// `STATE_*`.
        0x3A state: u16,
        /// What to do on errors: 1 continue, 2 read-only, 3 panic.
        0x3C errors: u16,
        /// Minor revision.
        0x3E minor_revision: u16,
        /// Time of the last check.
        0x40 last_check: u32,
        /// Seconds between checks; 0 for never.
        0x44 check_interval: u32,
        /// [`OS_LINUX`].
        0x48 creator_os: u32,
        /// [`DYNAMIC_REVISION`].
        0x4C revision: u32,
        /// User that may use reserved blocks.
        0x50 reserved_uid: u16,
        /// Group that may use reserved blocks.
        0x52 reserved_gid: u16,
        /// First inode for files.
        0x54 first_inode: u32,
        /// Bytes in an inode.
        0x58 inode_size: u16,
        /// The group of this copy.
        0x5A block_group: u16,
        /// [`compat`].
        0x5C feature_compat: u32,
        /// [`incompat`].
        0x60 feature_incompat: u32,
        /// [`ro_compat`].
        0x64 feature_ro_compat: u32,
        /// UUID of the filesystem.
        0x68 uuid: [u8; 16],
        /// Label, padded with zeros.
        0x78 label: [u8; 16],
        /// Directory of the last mount.
        0x88 last_mounted: [u8; 64],
        /// Unused.
        0xC8 algorithm_bitmap: u32,
        /// Unused.
        0xCC prealloc_blocks: u8,
        /// Unused.
        0xCD prealloc_dir_blocks: u8,
        /// Number of descriptor blocks reserved for growth, in each group with a backup.
        0xCE reserved_gdt_blocks: u16,
        /// UUID of an external journal.
        0xD0 journal_uuid: [u8; 16],
        /// The journal's inode.
        0xE0 journal_inode: u32,
        /// Device of an external journal.
        0xE4 journal_device: u32,
        /// Head of the list of orphans.
        0xE8 last_orphan: u32,
        /// Seed of directory hashes.
        0xEC hash_seed: [u32; 4],
        /// Hash of new indexed directories; see [`super::hash::Version`].
        0xFC default_hash: u8,
        /// 1: `journal_blocks` is the journal inode's copy.
        0xFD journal_backup_type: u8,
        /// Size in bytes of a group descriptor with 64bit; without it, descriptors have 32 bytes.
        0xFE descriptor_size: u16,
        /// Default mount options.
        0x100 default_mount_options: u32,
        /// With meta_bg: first group of the meta block groups.
        0x104 first_meta_bg: u32,
        /// Time of creation.
        0x108 creation_time: u32,
        /// The journal inode's `i_block` and (`[15]` high, `[16]` low) size.
        0x10C journal_blocks: [u32; 17],
        /// Blocks, high half.
        0x150 blocks_count_hi: u32,
        /// Blocks that only root may use, high half.
        0x154 reserved_blocks_hi: u32,
        /// Free blocks, high half.
        0x158 free_blocks_hi: u32,
        /// Number of extra bytes that every inode has.
        0x15C min_extra_isize: u16,
        /// Number of extra bytes that new inodes get.
        0x15E want_extra_isize: u16,
        /// `FLAG_*`.
        0x160 flags: u32,
        /// RAID stride.
        0x164 raid_stride: u16,
        /// Seconds between checks of multi-mount protection.
        0x166 mmp_interval: u16,
        /// Block of multi-mount protection.
        0x168 mmp_block: u64,
        /// RAID stripe width.
        0x170 raid_stripe_width: u32,
        /// Groups in a flexible group are 1 << this.
        0x174 log_groups_per_flex: u8,
        /// [`CHECKSUM_CRC32C`].
        0x175 checksum_type: u8,
        /// Version of encryption.
        0x176 encryption_level: u8,
        /// Zero.
        0x177 reserved_pad: u8,
        /// Number of KiB ever written.
        0x178 kbytes_written: u64,
        /// Unused.
        0x180 snapshot_inode: u32,
        /// Unused.
        0x184 snapshot_id: u32,
        /// Unused.
        0x188 snapshot_reserved_blocks: u64,
        /// Unused.
        0x190 snapshot_list: u32,
        /// Number of errors.
        0x194 error_count: u32,
        /// Time of the first error.
        0x198 first_error_time: u32,
        /// Inode of the first error.
        0x19C first_error_inode: u32,
        /// Block of the first error.
        0x1A0 first_error_block: u64,
        /// Function of the first error.
        0x1A8 first_error_function: [u8; 32],
        /// Line of the first error.
        0x1C8 first_error_line: u32,
        /// Time of the last error.
        0x1CC last_error_time: u32,
        /// Inode of the last error.
        0x1D0 last_error_inode: u32,
        /// Line of the last error.
        0x1D4 last_error_line: u32,
        /// Block of the last error.
        0x1D8 last_error_block: u64,
        /// Function of the last error.
        0x1E0 last_error_function: [u8; 32],
        /// Mount options as text.
        0x200 mount_options: [u8; 64],
        /// Inode of user quotas.
        0x240 user_quota_inode: u32,
        /// Inode of group quotas.
        0x244 group_quota_inode: u32,
        /// Number of clusters of metadata; 0 if not computed.
        0x248 overhead_clusters: u32,
        /// With sparse_super2: the groups with backups.
        0x24C backup_groups: [u32; 2],
        /// Encryption algorithms.
        0x254 encryption_algorithms: [u8; 4],
        /// Encryption salt.
        0x258 encryption_salt: [u8; 16],
        /// Inode of lost+found.
        0x268 lost_found_inode: u32,
        /// Inode of project quotas.
        0x26C project_quota_inode: u32,
        /// With metadata_csum_seed: the seed of all checksums.
        0x270 checksum_seed: u32,
        /// High bits of `write_time`.
        0x274 write_time_hi: u8,
        /// High bits of `mount_time`.
        0x275 mount_time_hi: u8,
        /// High bits of `creation_time`.
        0x276 creation_time_hi: u8,
        /// High bits of `last_check`.
        0x277 last_check_hi: u8,
        /// High bits of `first_error_time`.
        0x278 first_error_time_hi: u8,
        /// High bits of `last_error_time`.
        0x279 last_error_time_hi: u8,
        /// Kind of the first error.
        0x27A first_error_code: u8,
        /// Kind of the last error.
        0x27B last_error_code: u8,
        /// Encoding of casefolded names.
        0x27C encoding: u16,
        /// Flags of the encoding.
        0x27E encoding_flags: u16,
        /// Inode of the orphan file.
        0x280 orphan_file_inode: u32,
        /// CRC-32C of all preceding bytes.
        0x3FC checksum: u32,
    }
}

impl Superblock {
    /// Whether all of `bits` ([`compat`]) are set.
    #[must_use]
    pub fn has_compat(&self, bits: u32) -> bool {
        self.feature_compat & bits == bits
    }

    /// Whether all of `bits` ([`ro_compat`]) are set.
    #[must_use]
    pub fn has_ro_compat(&self, bits: u32) -> bool {
        self.feature_ro_compat & bits == bits
    }

    /// Whether all of `bits` ([`incompat`]) are set.
    #[must_use]
    pub fn has_incompat(&self, bits: u32) -> bool {
        self.feature_incompat & bits == bits
    }

    /// Whether a kernel recorded an error in `state`.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.state & STATE_ERROR != 0
    }

    /// Copies the records of errors from `other`, and keeps this superblock's own mark. The journal
    /// may have an older copy of the superblock, from before the error that stopped it.
    pub fn keep_errors_of(&mut self, other: &Self) {
        self.state |= other.state & STATE_ERROR;
        self.set_error_fields(other);
    }

    /// Clears the mark and the records of errors, and marks the filesystem as valid.
    pub fn clear_errors(&mut self) {
        self.state = self.state & !STATE_ERROR | STATE_VALID;
        self.set_error_fields(&Self::default());
    }

    fn set_error_fields(&mut self, other: &Self) {
        let (mut bytes, from) = (self.encode(), other.encode());
        for range in ERROR_FIELDS {
            if let (Some(to), Some(from)) = (bytes.get_mut(range.clone()), from.get(range)) {
                to.copy_from_slice(from);
            }
        }
        *self = Self::decode(&bytes);
    }

    /// Whether metadata has CRC-32C checksums.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.has_ro_compat(ro_compat::METADATA_CSUM)
    }

    /// Whether group descriptors have a checksum of either kind, and therefore `UNINIT` flags.
    #[must_use]
    pub fn has_group_checksums(&self) -> bool {
        self.feature_ro_compat & (ro_compat::METADATA_CSUM | ro_compat::GDT_CSUM) != 0
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks_count(&self) -> u64 {
        self.joined(self.blocks_count_lo, self.blocks_count_hi)
    }

    /// Sets the number of blocks.
    pub fn set_blocks_count(&mut self, count: u64) {
        (self.blocks_count_lo, self.blocks_count_hi) = halves(count);
    }

    /// Returns the number of free blocks; with bigalloc, of clusters.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.joined(self.free_blocks_lo, self.free_blocks_hi)
    }

    /// Sets the number of free blocks.
    pub fn set_free_blocks(&mut self, count: u64) {
        (self.free_blocks_lo, self.free_blocks_hi) = halves(count);
    }

    /// Returns the number of blocks that only root may use.
    #[must_use]
    pub fn reserved_blocks(&self) -> u64 {
        self.joined(self.reserved_blocks_lo, self.reserved_blocks_hi)
    }

    /// Sets the number of blocks that only root may use.
    pub fn set_reserved_blocks(&mut self, count: u64) {
        (self.reserved_blocks_lo, self.reserved_blocks_hi) = halves(count);
    }

    /// Joins two halves. High halves are only used with 64bit.
    fn joined(&self, low: u32, high: u32) -> u64 {
        if self.has_incompat(incompat::BIT64) {
            u64::from(low) | u64::from(high) << 32
        } else {
            low.into()
        }
    }

    /// Returns the block size in bytes; `None` for an invalid one (the format has 1 KiB to 64 KiB).
    #[must_use]
    pub fn block_size(&self) -> Option<u32> {
        (self.log_block_size <= 6).then(|| 1024 << self.log_block_size)
    }

    /// Returns the size of an inode in bytes.
    #[must_use]
    pub fn inode_bytes(&self) -> u16 {
        if self.revision >= DYNAMIC_REVISION {
            self.inode_size
        } else {
            128
        }
    }

    /// Returns the size of a group descriptor in bytes.
    #[must_use]
    pub fn descriptor_bytes(&self) -> u16 {
        if self.has_incompat(incompat::BIT64) {
            self.descriptor_size.max(32)
        } else {
            32
        }
    }

    /// Returns the first inode for files.
    #[must_use]
    pub fn first_file_inode(&self) -> u32 {
        if self.revision >= DYNAMIC_REVISION {
            self.first_inode
        } else {
            FIRST_INODE
        }
    }

    /// Returns the number of groups; 0 if the superblock is inconsistent.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.blocks_count()
            .saturating_sub(self.first_data_block.into())
            .checked_add(u64::from(self.blocks_per_group).saturating_sub(1))
            .and_then(|blocks| blocks.checked_div(self.blocks_per_group.into()))
            .unwrap_or(0)
    }

    /// Returns the seed of metadata checksums: derived from the UUID, or as stored.
    #[must_use]
    pub fn seed(&self) -> u32 {
        if self.has_incompat(incompat::CSUM_SEED) {
            self.checksum_seed
        } else {
            crc32c(!0, &self.uuid)
        }
    }

    /// Whether group `group` starts with a copy of the superblock and of the descriptors (of the
    /// descriptors only where meta_bg does not place them elsewhere).
    #[must_use]
    pub fn has_backup(&self, group: u64) -> bool {
        if group == 0 {
            return true;
        }
        if self.has_compat(compat::SPARSE_SUPER2) {
            return self
                .backup_groups
                .iter()
                .any(|&backup| u64::from(backup) == group);
        }
        if group == 1 || !self.has_ro_compat(ro_compat::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| {
            let mut power: u64 = base;
            while power < group {
                power = power.saturating_mul(base);
            }
            power == group
        })
    }

    /// Computes the checksum at the end of the encoded superblock `bytes`.
    #[must_use]
    pub fn checksum_of(bytes: &[u8; Self::SIZE]) -> u32 {
        crc32c(!0, bytes.get(..CHECKSUM_OFFSET).unwrap_or_default())
    }

    /// Encodes the superblock over `bytes`, with its checksum under metadata_csum. Bytes without a
    /// field are unchanged.
    pub fn seal_into(&self, bytes: &mut [u8; Self::SIZE]) {
        self.encode_into(bytes);
        if self.has_checksums() {
            let checksum = Self::checksum_of(bytes);
            fields::put(bytes, CHECKSUM_OFFSET, checksum);
        }
    }
}

fn halves(value: u64) -> (u32, u32) {
    (low32(value), (value >> 32) as u32)
}
