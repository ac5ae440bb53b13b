//! The filesystem that a superblock describes, with all numbers in range.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::finding::Findings;
use crate::BlockDevice;
use crate::format::features::{self, Set, compat, incompat, ro_compat};
use crate::format::fields;
use crate::format::group::{BLOCK_UNINIT, GroupDescriptor, INODE_UNINIT};
use crate::format::superblock::{
    CHECKSUM_CRC32C, DYNAMIC_REVISION, MAGIC, SUPERBLOCK_OFFSET, Superblock,
};
use crate::placement::Placement;
use micabox_file::narrow::saturate32;

/// Feature bits that this check knows. Others are rejected, as in e2fsck.
const COMPAT_KNOWN: u32 = compat::DIR_PREALLOC
    | compat::IMAGIC_INODES
    | compat::HAS_JOURNAL
    | compat::EXT_ATTR
    | compat::RESIZE_INODE
    | compat::DIR_INDEX
    | compat::SPARSE_SUPER2
    | compat::FAST_COMMIT
    | compat::STABLE_INODES
    | compat::ORPHAN_FILE;
const INCOMPAT_KNOWN: u32 = incompat::FILETYPE
    | incompat::RECOVER
    | incompat::META_BG
    | incompat::EXTENTS
    | incompat::BIT64
    | incompat::MMP
    | incompat::FLEX_BG
    | incompat::EA_INODE
    | incompat::CSUM_SEED
    | incompat::LARGEDIR
    | incompat::INLINE_DATA
    | incompat::ENCRYPT
    | incompat::CASEFOLD;
const RO_COMPAT_KNOWN: u32 = ro_compat::SPARSE_SUPER
    | ro_compat::LARGE_FILE
    | ro_compat::HUGE_FILE
    | ro_compat::GDT_CSUM
    | ro_compat::DIR_NLINK
    | ro_compat::EXTRA_ISIZE
    | ro_compat::QUOTA
    | ro_compat::BIGALLOC
    | ro_compat::METADATA_CSUM
    | ro_compat::READONLY
    | ro_compat::PROJECT
    | ro_compat::SHARED_BLOCKS
    | ro_compat::VERITY
    | ro_compat::ORPHAN_PRESENT;

/// `s_encoding` of UTF-8 12.1, the only one that exists.
const ENCODING_UTF8: u16 = 1;

/// A filesystem whose numbers are consistent and fit the device.
pub(super) struct Volume<'d> {
    device: &'d dyn BlockDevice,
    pub(super) superblock: Superblock,
    pub(super) groups: Vec<GroupDescriptor>,
    pub(super) block_size: usize,
    /// Number of blocks in a cluster, 1 without bigalloc.
    pub(super) cluster_ratio: u64,
    pub(super) blocks: u64,
    pub(super) first_data_block: u64,
    pub(super) blocks_per_group: u64,
    pub(super) inode_size: usize,
    /// Seed of all checksums.
    pub(super) seed: u32,
    descriptor_size: usize,
    descriptor_blocks: u64,
}

impl<'d> Volume<'d> {
    /// Reads superblock and descriptors. `None` if they are unusable; at least one finding gives
    /// the reason then.
    pub(super) fn open(device: &'d dyn BlockDevice, found: &mut Findings) -> Option<Self> {
        let mut raw = [0; Superblock::SIZE];
        if device
            .size()
            .is_ok_and(|size| size < SUPERBLOCK_OFFSET + raw.len() as u64)
        {
            found.add("too short to hold a superblock: not a filesystem");
            return None;
        }
        if let Err(error) = device.read_at(SUPERBLOCK_OFFSET, &mut raw) {
            found.add(format_args!("the superblock could not be read: {error}"));
            return None;
        }
        let mut volume = match geometry(device, Superblock::decode(&raw)) {
            Ok(volume) => volume,
            Err(problem) => {
                found.add(format_args!("the superblock is corrupt: {problem}"));
                return None;
            }
        };
        let superblock = &volume.superblock;
        if superblock.has_checksums() && Superblock::checksum_of(&raw) != superblock.checksum {
            found.add("superblock checksum does not match superblock");
        }
        let held = device.size().unwrap_or(0) / volume.block_size as u64;
        if volume.blocks > held {
            found.add(format_args!(
                "the filesystem size (according to the superblock) is {} blocks, the physical \
                 size of the device is {held} blocks: either the superblock or the partition \
                 table is likely to be corrupt",
                volume.blocks
            ));
            return None;
        }
        volume.read_groups(found)?;
        Some(volume)
    }

    /// Reads one block.
    pub(super) fn read_block(&self, block: u64, into: &mut Vec<u8>) -> Result<(), String> {
        into.resize(self.block_size, 0);
        if block >= self.blocks {
            return Err(format!("block {block} is outside the filesystem"));
        }
        self.read(block * self.block_size as u64, into)
            .map_err(|problem| format!("block {block}: {problem}"))
    }

    /// Reads bytes at any offset.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), String> {
        self.device
            .read_at(offset, into)
            .map_err(|error| format!("error reading: {error}"))
    }

    /// Whether a range is entirely a hole.
    pub(super) fn is_hole(&self, offset: u64, length: u64) -> bool {
        self.device.is_hole(offset, length)
    }

    pub(super) fn has_incompat(&self, bit: u32) -> bool {
        self.superblock.has_incompat(bit)
    }

    pub(super) fn has_ro_compat(&self, bit: u32) -> bool {
        self.superblock.has_ro_compat(bit)
    }

    pub(super) fn has_checksums(&self) -> bool {
        self.superblock.has_checksums()
    }

    pub(super) fn inodes_per_group(&self) -> u32 {
        self.superblock.inodes_per_group
    }

    /// Whether files and their trees may use a block.
    pub(super) fn is_data_block(&self, block: u64) -> bool {
        block > 0 && (self.first_data_block..self.blocks).contains(&block)
    }

    /// Returns the blocks of a group.
    pub(super) fn group_blocks(&self, group: usize) -> Range<u64> {
        let start = self.first_data_block + group as u64 * self.blocks_per_group;
        start..self.blocks.min(start.saturating_add(self.blocks_per_group))
    }

    /// Returns the number of blocks of each inode table.
    pub(super) fn table_blocks(&self) -> u64 {
        let bytes = u64::from(self.inodes_per_group()) * self.inode_size as u64;
        bytes.div_ceil(self.block_size as u64)
    }

    /// Returns the placement of copies of superblock and descriptors.
    pub(super) fn placement(&self) -> Placement<'_> {
        Placement::new(&self.superblock, self.block_size, self.descriptor_size)
    }

    /// Returns the blocks at a group's start that hold superblock and descriptors, or room for
    /// them.
    pub(super) fn base_blocks(&self, group: u64) -> Range<u64> {
        let base = self.placement().base(group);
        base.start..base.end.min(self.blocks).max(base.start)
    }

    fn read_groups(&mut self, found: &mut Findings) -> Option<()> {
        let mut buffer = Vec::new();
        let count = self.superblock.groups();
        let checked = self.superblock.has_group_checksums();
        for index in 0..self.descriptor_blocks {
            let block = self.placement().descriptor_block(index);
            if let Err(problem) = self.read_block(block, &mut buffer) {
                found.add(format_args!("group descriptors look bad: {problem}"));
                return None;
            }
            for bytes in buffer.chunks_exact(self.descriptor_size) {
                let group = self.groups.len() as u64;
                if group >= count {
                    break;
                }
                // The fields that a short descriptor lacks read as zero.
                let descriptor = GroupDescriptor::decode(bytes);
                let right =
                    GroupDescriptor::checksum_of(&self.superblock, saturate32(group), bytes);
                if checked && descriptor.checksum != right {
                    found.add(format_args!(
                        "group descriptor {group} checksum is {:#06x}, should be {right:#06x}",
                        descriptor.checksum
                    ));
                }
                self.groups.push(descriptor);
            }
        }
        let mut usable = true;
        for (number, group) in self.groups.iter().enumerate() {
            usable &= self.check_group(number, group, found);
        }
        // With invalid table positions, further findings would only be consequences.
        usable.then_some(())
    }

    /// Checks that a group's tables have valid positions.
    fn check_group(&self, number: usize, group: &GroupDescriptor, found: &mut Findings) -> bool {
        // With flex_bg the tables may lie in another group.
        let allowed = if self.has_incompat(incompat::FLEX_BG) {
            self.first_data_block..self.blocks
        } else {
            self.group_blocks(number)
        };
        let parts = [
            ("Block bitmap", group.block_bitmap(), 1),
            ("Inode bitmap", group.inode_bitmap(), 1),
            ("Inode table", group.inode_table(), self.table_blocks()),
        ];
        let mut usable = true;
        for (what, start, length) in parts {
            let fits = allowed.contains(&start) && start > 0 && length <= allowed.end - start;
            if !fits {
                found.add(format_args!(
                    "{what} for group {number} is not in group.  (block {start})"
                ));
                usable = false;
            }
        }
        if !self.superblock.has_group_checksums() {
            if group.flags & (INODE_UNINIT | BLOCK_UNINIT) != 0 || group.unused_inodes() != 0 {
                found.add(format_args!(
                    "group descriptor {number} marked uninitialized without feature set"
                ));
            }
            return usable;
        }
        if group.unused_inodes() > self.inodes_per_group() {
            found.add(format_args!(
                "group descriptor {number} has invalid unused inodes count {}",
                group.unused_inodes()
            ));
        }
        if number + 1 == self.groups.len() && group.flags & BLOCK_UNINIT != 0 {
            found.add("last group block bitmap uninitialized");
        }
        usable
    }
}

/// Validates the numbers of a superblock that the rest of the check depends on.
fn geometry(device: &dyn BlockDevice, superblock: Superblock) -> Result<Volume<'_>, String> {
    if superblock.magic != MAGIC {
        return Err("bad magic number in super-block".into());
    }
    if superblock.revision > DYNAMIC_REVISION {
        return Err(format!("revision {}", superblock.revision));
    }
    known_features(&superblock)?;
    if superblock.has_incompat(incompat::CASEFOLD) && superblock.encoding != ENCODING_UTF8 {
        return Err(format!("unsupported encoding: {:#x}", superblock.encoding));
    }
    let (block_size, cluster_ratio) = block_sizes(&superblock)?;
    check_blocks(&superblock, block_size, cluster_ratio)?;
    check_inodes(&superblock, block_size)?;
    let descriptor_blocks = check_descriptors(&superblock, block_size)?;
    if superblock.has_checksums() && superblock.checksum_type != CHECKSUM_CRC32C {
        return Err(format!(
            "unknown checksum algorithm {}",
            superblock.checksum_type
        ));
    }
    if usize::from(superblock.reserved_gdt_blocks) > block_size / 4 {
        return Err(format!(
            "{} reserved GDT blocks",
            superblock.reserved_gdt_blocks
        ));
    }
    Ok(Volume {
        device,
        groups: Vec::new(),
        block_size,
        cluster_ratio,
        blocks: superblock.blocks_count(),
        first_data_block: superblock.first_data_block.into(),
        blocks_per_group: superblock.blocks_per_group.into(),
        inode_size: superblock.inode_bytes().into(),
        seed: superblock.seed(),
        descriptor_size: superblock.descriptor_bytes().into(),
        descriptor_blocks,
        superblock,
    })
}

/// Validates the sizes of blocks and clusters. Returns a block's bytes and a cluster's blocks.
fn block_sizes(superblock: &Superblock) -> Result<(usize, u64), String> {
    let block_size = superblock
        .block_size()
        .ok_or_else(|| format!("log block size {}", superblock.log_block_size))?
        as usize;
    let (log_block, log_cluster) = (superblock.log_block_size, superblock.log_cluster_size);
    let bigalloc = superblock.has_ro_compat(ro_compat::BIGALLOC);
    let most = log_block + if bigalloc { 16 } else { 0 };
    if !(log_block..=most).contains(&log_cluster) {
        return Err(format!("log cluster size {log_cluster}"));
    }
    if superblock.log_groups_per_flex > 31 {
        let log = superblock.log_groups_per_flex;
        return Err(format!("log of groups per flexible group {log}"));
    }
    Ok((block_size, 1 << (log_cluster - log_block)))
}

/// Validates the numbers of blocks, in all and in a group.
fn check_blocks(
    superblock: &Superblock,
    block_size: usize,
    cluster_ratio: u64,
) -> Result<(), String> {
    let blocks = superblock.blocks_count();
    let first_data_block = u64::from(superblock.first_data_block);
    let expected = u64::from(block_size == 1024 && cluster_ratio == 1);
    if first_data_block != expected {
        return Err(format!(
            "first data block {first_data_block}, should be {expected}"
        ));
    }
    let blocks_per_group = u64::from(superblock.blocks_per_group);
    let clusters = u64::from(superblock.clusters_per_group);
    if blocks_per_group < 8
        || !blocks_per_group.is_multiple_of(8)
        || clusters > block_size as u64 * 8
        || clusters.saturating_mul(cluster_ratio) != blocks_per_group
    {
        return Err(format!(
            "{blocks_per_group} blocks, {clusters} clusters per group"
        ));
    }
    if blocks <= first_data_block || blocks > u64::MAX / 2 / block_size as u64 {
        return Err(format!("block count {blocks}"));
    }
    if superblock.reserved_blocks() > blocks / 2 {
        return Err(format!("{} reserved blocks", superblock.reserved_blocks()));
    }
    Ok(())
}

/// Validates the size and the numbers of inodes, in all and in a group.
fn check_inodes(superblock: &Superblock, block_size: usize) -> Result<(), String> {
    let inode_size = usize::from(superblock.inode_bytes());
    if !inode_size.is_power_of_two() || !(128..=block_size).contains(&inode_size) {
        return Err(format!("inode size {inode_size}"));
    }
    let per_group = superblock.inodes_per_group;
    let groups = superblock.groups();
    if per_group == 0
        || !per_group.is_multiple_of(8)
        || per_group as usize > block_size * 8
        || groups.saturating_mul(per_group.into()) != u64::from(superblock.inodes_count)
    {
        return Err(format!(
            "inode count is {}, with {groups} groups of {per_group}",
            superblock.inodes_count
        ));
    }
    let first_inode = superblock.first_file_inode();
    if !(11..=superblock.inodes_count).contains(&first_inode) {
        return Err(format!("first inode {first_inode}"));
    }
    Ok(())
}

/// Validates the size of group descriptors. Returns the number of their blocks.
fn check_descriptors(superblock: &Superblock, block_size: usize) -> Result<u64, String> {
    let descriptor_size = usize::from(superblock.descriptor_bytes());
    let stored = superblock.descriptor_size;
    let wanted = if superblock.has_incompat(incompat::BIT64) {
        stored.is_power_of_two() && (64..=1024).contains(&stored)
    } else {
        // Only e2fsck reads the field then.
        stored == 0 || stored.is_power_of_two() && stored <= 1024
    };
    if !wanted || descriptor_size > block_size {
        return Err(format!("block group descriptor size {stored} incorrect"));
    }
    let groups = superblock.groups();
    let descriptor_blocks = groups.div_ceil((block_size / descriptor_size) as u64);
    if superblock.has_incompat(incompat::META_BG)
        && u64::from(superblock.first_meta_bg) > descriptor_blocks
    {
        return Err(format!(
            "first_meta_bg is too big ({}, max value {descriptor_blocks})",
            superblock.first_meta_bg
        ));
    }
    Ok(descriptor_blocks)
}

fn known_features(superblock: &Superblock) -> Result<(), String> {
    let words = [
        (Set::Compat, superblock.feature_compat, COMPAT_KNOWN),
        (Set::Incompat, superblock.feature_incompat, INCOMPAT_KNOWN),
        (Set::RoCompat, superblock.feature_ro_compat, RO_COMPAT_KNOWN),
    ];
    for (set, bits, known) in words {
        let unknown = bits & !known;
        if unknown != 0 {
            let name = features::name(set, unknown).unwrap_or("without a name");
            return Err(format!("unsupported feature {name} (bits {unknown:#x})"));
        }
    }
    Ok(())
}

/// Returns word `index` of bytes that are a sequence of words.
pub(super) fn word(bytes: &[u8], index: usize) -> u32 {
    fields::get(bytes, index.saturating_mul(4))
}

/// Creates a buffer of one block.
pub(super) fn buffer(volume: &Volume) -> Vec<u8> {
    vec![0; volume.block_size]
}
