//! Writes a new filesystem's blocks according to its layout.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::layout::{DESCRIPTOR_SIZE, LOST_FOUND_BLOCKS, Layout};
use super::{BLOCK_SIZE, BLOCKS_PER_GROUP, INODE_SIZE, MkfsError, Options};
use crate::format::checksum::{crc32c, inode_seed};
use crate::format::directory::{self, FileType};
use crate::format::extent::{self, Extent, Header, Index};
use crate::format::features::{compat, incompat, ro_compat};
use crate::format::fields;
use crate::format::group::{
    BLOCK_UNINIT, GroupDescriptor, INODE_UNINIT, INODE_ZEROED, bitmap_checksum,
};
use crate::format::inode::{self, EXTRA_ISIZE, RawInode, encode_time, flags};
use crate::format::journal;
use crate::format::superblock::{
    CHECKSUM_CRC32C, DYNAMIC_REVISION, FIRST_INODE, FLAG_SIGNED_HASH, JOURNAL_INODE, MAGIC,
    ROOT_INODE, STATE_VALID, SUPERBLOCK_OFFSET, Superblock,
};
use crate::{BlockDevice, Timestamp};
use micabox_file::narrow::{in_memory, low8, low32, saturate8, saturate16, saturate32};

const BLOCK: usize = in_memory(BLOCK_SIZE);
/// `lost+found` is the first inode that is not reserved.
const LOST_FOUND_INODE: u32 = FIRST_INODE;
/// Hash of indexed directories: half MD4.
const HASH_HALF_MD4: u8 = 1;
/// Default mount options `user_xattr` and `acl`.
const DEFAULT_MOUNT_OPTIONS: u32 = 0xC;

/// Writes the whole filesystem; returns the number of free blocks.
pub fn emit(
    layout: &Layout,
    options: &Options,
    device: &mut dyn BlockDevice,
) -> Result<u64, MkfsError> {
    let mut superblock = superblock(layout, options);
    let mut table = Vec::with_capacity(in_memory(layout.descriptor_blocks * BLOCK_SIZE));
    let mut free = 0;
    for group in 0..layout.groups {
        let mut descriptor = descriptor(layout, group);
        emit_bitmaps(layout, &superblock, group, &mut descriptor, device)?;
        free += u64::from(descriptor.free_blocks());
        let start = table.len();
        table.resize(start + in_memory(DESCRIPTOR_SIZE), 0);
        if let Some(bytes) = table.get_mut(start..) {
            descriptor.seal_into(&superblock, group, bytes);
        }
    }
    table.resize(in_memory(layout.descriptor_blocks * BLOCK_SIZE), 0);
    superblock.set_free_blocks(free);

    let inodes = Inodes::new(&superblock, options);
    emit_directories(layout, &superblock, device)?;
    let journal = emit_journal(layout, &inodes, device)?;
    if let Some(journal) = &journal {
        // A copy for e2fsck in case the inode is lost.
        for (word, bytes) in superblock
            .journal_blocks
            .iter_mut()
            .zip(journal.block.chunks(4))
        {
            *word = fields::get(bytes, 0);
        }
        superblock.journal_blocks[15] = journal.size_hi;
        superblock.journal_blocks[16] = journal.size_lo;
    }
    if let Some(tables) = layout.tables.first() {
        let block = inodes.table(layout, journal);
        device.write_at(tables.inode_table * BLOCK_SIZE, &block)?;
    }
    let backups = layout.backups.into_iter().filter(|&group| group != 0);
    for group in backups.chain([0]) {
        emit_superblock(&mut superblock, group, &table, layout, device)?;
    }
    Ok(free)
}

/// Writes one copy of superblock and descriptors, in one request.
fn emit_superblock(
    superblock: &mut Superblock,
    group: u32,
    table: &[u8],
    layout: &Layout,
    device: &mut dyn BlockDevice,
) -> Result<(), MkfsError> {
    superblock.block_group = saturate16(group);
    let mut bytes = [0; Superblock::SIZE];
    superblock.seal_into(&mut bytes);
    let mut head = vec![0; BLOCK];
    let at = if group == 0 {
        in_memory(SUPERBLOCK_OFFSET)
    } else {
        0
    };
    if let Some(place) = head.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(&bytes);
    }
    head.extend_from_slice(table);
    Ok(device.write_at(layout.base(group).start * BLOCK_SIZE, &head)?)
}

fn superblock(layout: &Layout, options: &Options) -> Superblock {
    let time = options.time.cast_unsigned();
    let (time, time_hi) = (low32(time), low8(time >> 32));
    let journal = !layout.journal.is_empty();
    let mut superblock = Superblock {
        inodes_count: saturate32(layout.inodes()),
        free_inodes: saturate32(layout.inodes()).saturating_sub(FIRST_INODE),
        log_block_size: 2,
        log_cluster_size: 2,
        blocks_per_group: saturate32(BLOCKS_PER_GROUP),
        clusters_per_group: saturate32(BLOCKS_PER_GROUP),
        inodes_per_group: layout.inodes_per_group,
        write_time: time,
        write_time_hi: time_hi,
        max_mount_count: u16::MAX,
        magic: MAGIC,
        state: STATE_VALID,
        errors: 1,
        last_check: time,
        last_check_hi: time_hi,
        revision: DYNAMIC_REVISION,
        first_inode: FIRST_INODE,
        inode_size: saturate16(INODE_SIZE),
        feature_compat: compat::EXT_ATTR
            | compat::DIR_INDEX
            | compat::SPARSE_SUPER2
            | if journal { compat::HAS_JOURNAL } else { 0 },
        feature_incompat: incompat::FILETYPE
            | incompat::EXTENTS
            | incompat::BIT64
            | incompat::FLEX_BG,
        feature_ro_compat: ro_compat::SPARSE_SUPER
            | ro_compat::LARGE_FILE
            | ro_compat::HUGE_FILE
            | ro_compat::DIR_NLINK
            | ro_compat::EXTRA_ISIZE
            | ro_compat::METADATA_CSUM,
        uuid: options.uuid,
        label: options.label,
        hash_seed: hash_seed(options.uuid),
        default_hash: HASH_HALF_MD4,
        descriptor_size: saturate16(DESCRIPTOR_SIZE),
        default_mount_options: DEFAULT_MOUNT_OPTIONS,
        creation_time: time,
        creation_time_hi: time_hi,
        min_extra_isize: EXTRA_ISIZE,
        want_extra_isize: EXTRA_ISIZE,
        flags: FLAG_SIGNED_HASH,
        log_groups_per_flex: saturate8(super::layout::GROUPS_PER_FLEX.ilog2()),
        checksum_type: CHECKSUM_CRC32C,
        overhead_clusters: saturate32(layout.overhead()),
        backup_groups: layout.backups,
        journal_inode: if journal { JOURNAL_INODE } else { 0 },
        journal_backup_type: u8::from(journal),
        ..Superblock::default()
    };
    superblock.set_blocks_count(layout.blocks);
    let reserved = u128::from(layout.blocks) * u128::from(options.reserved.min(5000)) / 10_000;
    superblock.set_reserved_blocks(u64::try_from(reserved).unwrap_or(u64::MAX));
    superblock
}

/// Derives the directory hash's seed from the UUID, so that the same options produce the same
/// bytes.
fn hash_seed(uuid: [u8; 16]) -> [u32; 4] {
    core::array::from_fn(|word| crc32c(crc32c(!0, &uuid), &saturate32(word).to_le_bytes()))
}

/// Builds a group's descriptor without the checksums of bitmaps.
fn descriptor(layout: &Layout, group: u32) -> GroupDescriptor {
    let blocks = layout.group(group);
    let taken: u64 = layout
        .taken_in(blocks.clone())
        .map(|run| run.end - run.start)
        .sum();
    let mut descriptor = GroupDescriptor::default();
    if let Some(tables) = layout.tables.get(group as usize) {
        descriptor.set_block_bitmap(tables.block_bitmap);
        descriptor.set_inode_bitmap(tables.inode_bitmap);
        descriptor.set_inode_table(tables.inode_table);
    }
    descriptor.set_free_blocks(saturate32(blocks.end - blocks.start - taken));
    let used_inodes = if group == 0 { FIRST_INODE } else { 0 };
    let free_inodes = layout.inodes_per_group.saturating_sub(used_inodes);
    descriptor.set_free_inodes(free_inodes);
    descriptor.set_unused_inodes(free_inodes);
    // The target reads as zeros: the kernel need not clear the tables after a mount.
    descriptor.flags = INODE_ZEROED;
    if group == 0 {
        descriptor.set_directories(2);
    } else {
        descriptor.flags |= INODE_UNINIT;
    }
    // A bitmap that was never written stands for superblock and descriptors alone; the last one
    // must be written, as it marks the end of the filesystem.
    let base = layout.base(group);
    if group != 0 && group + 1 != layout.groups && taken == base.end - base.start {
        descriptor.flags |= BLOCK_UNINIT;
    }
    descriptor
}

/// Writes the bitmaps of a group that has any, and records their checksums.
fn emit_bitmaps(
    layout: &Layout,
    superblock: &Superblock,
    group: u32,
    descriptor: &mut GroupDescriptor,
    device: &mut dyn BlockDevice,
) -> Result<(), MkfsError> {
    if descriptor.flags & BLOCK_UNINIT == 0 {
        let blocks = layout.group(group);
        let mut bitmap = vec![0; BLOCK];
        for run in layout.taken_in(blocks.clone()) {
            set_bits(
                &mut bitmap,
                run.start - blocks.start..run.end - blocks.start,
            );
        }
        set_bits(&mut bitmap, blocks.end - blocks.start..BLOCKS_PER_GROUP);
        descriptor.set_block_bitmap_checksum(bitmap_checksum(superblock, &bitmap));
        device.write_at(descriptor.block_bitmap() * BLOCK_SIZE, &bitmap)?;
    }
    if descriptor.flags & INODE_UNINIT == 0 {
        let mut bitmap = vec![0; BLOCK];
        set_bits(&mut bitmap, 0..u64::from(FIRST_INODE));
        set_bits(
            &mut bitmap,
            u64::from(layout.inodes_per_group)..BLOCKS_PER_GROUP,
        );
        let length = layout.inodes_per_group as usize / 8;
        let meant = bitmap.get(..length).unwrap_or(&bitmap);
        descriptor.set_inode_bitmap_checksum(bitmap_checksum(superblock, meant));
        device.write_at(descriptor.inode_bitmap() * BLOCK_SIZE, &bitmap)?;
    }
    Ok(())
}

fn set_bits(bitmap: &mut [u8], bits: Range<u64>) {
    let (first, last) = ((bits.start / 8) as usize, (bits.end / 8) as usize);
    if bits.start >= bits.end {
        return;
    }
    let head = 0xff_u8 << (bits.start % 8);
    let tail = !(0xff_u8 << (bits.end % 8));
    if first == last {
        if let Some(byte) = bitmap.get_mut(first) {
            *byte |= head & tail;
        }
        return;
    }
    if let Some(byte) = bitmap.get_mut(first) {
        *byte |= head;
    }
    if let Some(bytes) = bitmap.get_mut(first + 1..last) {
        bytes.fill(0xff);
    }
    if let Some(byte) = bitmap.get_mut(last) {
        *byte |= tail;
    }
}

/// Writes the root directory's block and, after it, those of `lost+found`.
fn emit_directories(
    layout: &Layout,
    superblock: &Superblock,
    device: &mut dyn BlockDevice,
) -> Result<(), MkfsError> {
    let directory = FileType::Directory as u8;
    let end = BLOCK - directory::TAIL_SIZE;
    let seal = |inode: u32, block: &mut [u8]| {
        directory::put_tail(block);
        directory::seal(inode_seed(superblock.seed(), inode, 0), block);
    };
    let mut root = vec![0; BLOCK];
    directory::put_entry(&mut root, 0, 12, ROOT_INODE, directory, b".");
    directory::put_entry(&mut root, 12, 12, ROOT_INODE, directory, b"..");
    directory::put_entry(
        &mut root,
        24,
        end - 24,
        LOST_FOUND_INODE,
        directory,
        b"lost+found",
    );
    seal(ROOT_INODE, &mut root);

    let mut lost_found = vec![0; BLOCK * in_memory(LOST_FOUND_BLOCKS)];
    for (index, block) in lost_found.chunks_mut(BLOCK).enumerate() {
        if index == 0 {
            directory::put_entry(block, 0, 12, LOST_FOUND_INODE, directory, b".");
            directory::put_entry(block, 12, end - 12, ROOT_INODE, directory, b"..");
        } else {
            directory::put_entry(block, 0, end, 0, 0, b"");
        }
        seal(LOST_FOUND_INODE, block);
    }
    if layout.lost_found == layout.root + 1 {
        root.extend_from_slice(&lost_found);
        return Ok(device.write_at(layout.root * BLOCK_SIZE, &root)?);
    }
    device.write_at(layout.root * BLOCK_SIZE, &root)?;
    Ok(device.write_at(layout.lost_found * BLOCK_SIZE, &lost_found)?)
}

/// Writes the journal's superblock and, if needed, the block with its extents. Returns the
/// journal's inode.
fn emit_journal(
    layout: &Layout,
    inodes: &Inodes,
    device: &mut dyn BlockDevice,
) -> Result<Option<RawInode>, MkfsError> {
    let Some(first) = layout.journal.first() else {
        return Ok(None);
    };
    let blocks: u64 = layout.journal.iter().map(|run| run.end - run.start).sum();
    let mut block = vec![0; BLOCK];
    let log = journal::Superblock {
        magic: journal::MAGIC,
        block_type: journal::SUPERBLOCK_V2,
        block_size: saturate32(BLOCK_SIZE),
        blocks: saturate32(blocks),
        first: 1,
        sequence: 1,
        users: 1,
        ..journal::Superblock::default()
    };
    log.seal_into(&mut block);
    device.write_at(first.start * BLOCK_SIZE, &block)?;

    let mut logical = 0;
    let extents: Vec<Extent> = layout
        .journal
        .iter()
        .map(|run| {
            let length = saturate32(run.end - run.start);
            logical += length;
            Extent {
                logical: logical - length,
                length,
                physical: run.start,
                unwritten: false,
            }
        })
        .collect();
    let mut inode = inodes.inode(0o100_600, 1, blocks * BLOCK_SIZE);
    let Some(leaf) = layout.journal_leaf else {
        inode.block = root_of(&extents);
        return Ok(Some(inode));
    };
    let mut node = vec![0; BLOCK];
    node_into(
        &mut node,
        0,
        extent::node_capacity(BLOCK),
        extents.iter().map(Extent::encode),
    );
    extent::seal(inode_seed(inodes.seed, JOURNAL_INODE, 0), &mut node);
    device.write_at(leaf * BLOCK_SIZE, &node)?;
    let index = Index {
        logical: 0,
        child: leaf,
    };
    node_into(
        &mut inode.block,
        1,
        extent::ROOT_ENTRIES,
        [index.encode()].into_iter(),
    );
    inode.set_blocks((blocks + 1) * (BLOCK_SIZE / 512));
    Ok(Some(inode))
}

/// Builds an `i_block` with a few extents.
fn root_of(extents: &[Extent]) -> [u8; 60] {
    let mut block = [0; 60];
    node_into(
        &mut block,
        0,
        extent::ROOT_ENTRIES,
        extents.iter().map(Extent::encode),
    );
    block
}

fn node_into(
    node: &mut [u8],
    depth: u16,
    max: u16,
    entries: impl ExactSizeIterator<Item = [u8; extent::ENTRY_SIZE]>,
) {
    let header = Header {
        magic: extent::MAGIC,
        entries: saturate16(entries.len()),
        max,
        depth,
        generation: 0,
    };
    header.encode_into(node);
    let places = node.chunks_exact_mut(extent::ENTRY_SIZE).skip(1);
    for (place, entry) in places.zip(entries) {
        place.copy_from_slice(&entry);
    }
}

/// Creates inodes with the filesystem's creation time.
struct Inodes {
    seed: u32,
    time: (u32, u32),
}

impl Inodes {
    fn new(superblock: &Superblock, options: &Options) -> Self {
        let time = Timestamp {
            seconds: options.time,
            nanos: 0,
        };
        Self {
            seed: superblock.seed(),
            time: encode_time(time),
        }
    }

    /// Creates an inode of root's, with an extent tree and all its blocks allocated.
    fn inode(&self, mode: u16, links_count: u16, size: u64) -> RawInode {
        let (seconds, extra) = self.time;
        let mut inode = RawInode {
            mode,
            links_count,
            atime: seconds,
            ctime: seconds,
            mtime: seconds,
            crtime: seconds,
            atime_extra: extra,
            ctime_extra: extra,
            mtime_extra: extra,
            crtime_extra: extra,
            extra_isize: EXTRA_ISIZE,
            flags: flags::EXTENTS,
            ..RawInode::default()
        };
        inode.set_size(size);
        inode.set_blocks(size / 512);
        inode
    }

    /// Builds the first block of group 0's inode table.
    fn table(&self, layout: &Layout, journal: Option<RawInode>) -> Vec<u8> {
        let directory = |mode, links, first, blocks: u64| {
            let mut inode = self.inode(mode, links, blocks * BLOCK_SIZE);
            inode.block = root_of(&[Extent {
                logical: 0,
                length: saturate32(blocks),
                physical: first,
                unwritten: false,
            }]);
            inode
        };
        let root = directory(0o040_755, 3, layout.root, 1);
        let lost_found = directory(0o040_700, 2, layout.lost_found, LOST_FOUND_BLOCKS);
        let all = [
            Some((ROOT_INODE, root)),
            Some((LOST_FOUND_INODE, lost_found)),
            journal.map(|journal| (JOURNAL_INODE, journal)),
        ];
        let mut block = vec![0; BLOCK];
        for (number, inode) in all.into_iter().flatten() {
            let place = block
                .chunks_exact_mut(in_memory(INODE_SIZE))
                .nth(number as usize - 1);
            if let Some(bytes) = place {
                inode.encode_into(bytes);
                inode::seal(self.seed, number, bytes);
            }
        }
        block
    }
}
