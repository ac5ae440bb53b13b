//! Pass 1: checks every inode in use, its blocks and attributes.

mod attributes;
mod size;

use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use super::inode::{Inode, Kind};
use super::map::{Map, Walk};
use super::special::{self, BAD_BLOCKS, Purpose, RESIZE};
use super::state::{Directory, Seen, State};
use super::volume::{Volume, word};
use super::xattrs::Facts;
use crate::format::extent;
use crate::format::features::{compat, incompat, ro_compat};
use crate::format::group::INODE_UNINIT;
use crate::format::inode::{flags, is_linux};
use crate::format::superblock::{JOURNAL_INODE, ROOT_INODE};
use micabox_file::narrow::saturate32;

/// Number of bytes of inode tables read together.
const CHUNK: usize = 64 << 10;
/// Size of `i_block` in bytes.
const I_BLOCK: u64 = 60;
/// The inode for a boot loader.
const BOOT_LOADER: u32 = 5;

/// Checks all inodes.
pub(super) fn scan(state: &mut State) {
    let volume = state.volume;
    let per_group = volume.inodes_per_group();
    for (number, group) in volume.groups.iter().enumerate() {
        let used = if !volume.superblock.has_group_checksums() {
            per_group
        } else if group.flags & INODE_UNINIT != 0 {
            0
        } else {
            per_group.saturating_sub(group.unused_inodes())
        };
        let first = saturate32(number) * per_group + 1;
        table(state, group.inode_table(), first, used);
    }
    if !state.seen.contains_key(&ROOT_INODE) {
        state.found.add("root inode is not allocated");
    }
}

/// Checks the first `count` inodes of a table.
fn table(state: &mut State, block: u64, first: u32, count: u32) {
    let volume = state.volume;
    let size = volume.inode_size;
    let start = block * volume.block_size as u64;
    let length = count as usize * size;
    let mut chunk = vec![0; CHUNK.max(size).min(length)];
    let mut at = 0;
    while at < length {
        let take = (length - at).min(chunk.len());
        let offset = start + at as u64;
        let bytes = chunk.get_mut(..take).unwrap_or_default();
        if volume.is_hole(offset, take as u64) {
            at += take;
            continue;
        }
        if let Err(problem) = volume.read(offset, bytes) {
            state
                .found
                .add(format_args!("inode table at block {block}: {problem}"));
            return;
        }
        let number = first + saturate32(at / size);
        for (index, bytes) in bytes.chunks_exact(size).enumerate() {
            inode(state, &Inode::new(number + saturate32(index), bytes));
        }
        at += take;
    }
}

fn inode(state: &mut State, inode: &Inode) {
    let volume = state.volume;
    let number = inode.number;
    if volume.has_checksums() && !inode.is_sealed(volume) {
        state.found.inode(number, "checksum does not match inode");
    }
    if inode.raw.dtime != 0 && inode.raw.dtime < low_times(volume) {
        state
            .found
            .inode(number, "was part of a corrupted orphan linked list");
    }
    if number == BAD_BLOCKS {
        layout_flags(state, inode);
        return special::bad_blocks(state, inode);
    }
    let purpose = Purpose::of(volume, number);
    let reserved_for = number < volume.superblock.first_file_inode()
        || special::reserved_for_quota(volume).contains(&number);
    if inode.raw.links_count == 0 && !reserved_for {
        if inode.raw.mode != 0 && inode.raw.dtime == 0 {
            state.found.inode(number, "deleted inode has zero dtime");
        }
        return;
    }
    layout_flags(state, inode);
    match purpose {
        Purpose::File => {}
        Purpose::Unused => {
            remember(state, inode);
            return special::unused(state, inode);
        }
        Purpose::Reserved | Purpose::Own => return reserved(state, inode, purpose),
    }
    if inode.raw.links_count == 0 {
        return;
    }
    if inode.raw.dtime != 0 {
        state.found.inode(number, "is in use, but has dtime set");
    }
    if inode.kind().is_none() {
        let mode = inode.raw.mode;
        state
            .found
            .inode(number, format_args!("has invalid mode ({mode:#o})"));
    }
    if number == ROOT_INODE && inode.kind() != Some(Kind::Directory) {
        state.found.inode(number, "root inode is not a directory");
    }
    flags_and_fields(state, inode);
    let mut facts = Facts::default();
    let attribute_blocks = attributes::check(state, inode, &mut facts);
    remember(state, inode);
    let map = contents(state, inode, &facts, attribute_blocks);
    state.usage.add(volume, inode);
    special::remember(state, inode, &map);
    if inode.kind() == Some(Kind::Directory) {
        state.directories.push(Directory {
            number,
            flags: inode.raw.flags,
            seed: inode.seed(volume),
            size: inode.raw.size(),
            runs: map.runs,
            inline: inode.has(flags::INLINE_DATA).then(|| {
                [
                    inode.block().to_vec(),
                    facts.inline_data.unwrap_or_default(),
                ]
            }),
        });
    }
}

/// Returns the limit below which a time of deletion is not a time, but the number of an inode on
/// the list of orphans; 0 if the filesystem's own times are as low.
fn low_times(volume: &Volume) -> u32 {
    let superblock = &volume.superblock;
    let times = [
        superblock.write_time,
        superblock.mount_time,
        superblock.creation_time,
    ];
    let count = superblock.inodes_count;
    if times.into_iter().any(|time| time != 0 && time < count) {
        return 0;
    }
    count
}

const NOT_A_DIRECTORY: &str = "has INDEX_FL flag set but is not a directory";

/// Checks an inode of the filesystem's own, in use or not: no directory names it, and it has the
/// blocks that it claims.
fn reserved(state: &mut State, inode: &Inode, purpose: Purpose) {
    let number = inode.number;
    let kind = inode.kind();
    let regular = kind == Some(Kind::Regular);
    let empty = inode.raw.mode == 0;
    let wrong = match (purpose, number) {
        (Purpose::Own, _) => !regular,
        // The contents of a boot loader's inode are not checked.
        (_, BOOT_LOADER) => kind == Some(Kind::Directory),
        (_, RESIZE) => !empty && !regular,
        _ => !empty,
    };
    if wrong {
        state.found.inode(number, "reserved inode has invalid mode");
    }
    if inode.has(flags::INDEX) && kind != Some(Kind::Directory) {
        state.found.inode(number, NOT_A_DIRECTORY);
    }
    let mut facts = Facts::default();
    let attribute_blocks = attributes::in_block(state, inode, &mut facts);
    if number == RESIZE {
        let map = special::resize(state, inode);
        if state.volume.superblock.has_compat(compat::RESIZE_INODE) {
            if let Some(map) = map {
                occupied(state, inode, map.nodes.len() as u64 + attribute_blocks);
                size::check(state, inode, &map, false);
            }
            return;
        }
    }
    remember(state, inode);
    let map = contents(state, inode, &facts, attribute_blocks);
    state.usage.add(state.volume, inode);
    special::remember(state, inode, &map);
}

/// Records an inode in use, so that its names are counted.
fn remember(state: &mut State, inode: &Inode) {
    let references = u64::from(inode.raw.ctime) << 32 | u64::from(inode.raw.version_lo);
    let seen = Seen {
        kind: inode.kind(),
        links: inode.raw.links_count,
        counted: 0,
        flags: inode.raw.flags,
        references,
    };
    state.seen.insert(inode.number, seen);
}

/// Checks the flags that describe the location of the contents.
fn layout_flags(state: &mut State, inode: &Inode) {
    let superblock = &state.volume.superblock;
    let number = inode.number;
    let kind = inode.kind();
    let used =
        inode.raw.links_count != 0 || [BAD_BLOCKS, ROOT_INODE, JOURNAL_INODE].contains(&number);
    let directory = kind == Some(Kind::Directory);
    let mut problem = |wrong: bool, what: &str| {
        if wrong {
            state.found.inode(number, what);
        }
    };
    problem(
        inode.has(flags::CASEFOLD) && !(directory && superblock.has_incompat(incompat::CASEFOLD)),
        "has the casefold flag, but is not a directory or the filesystem lacks the feature",
    );
    let extents = superblock.has_incompat(incompat::EXTENTS);
    problem(
        used && inode.has(flags::EXTENTS) && !extents,
        "has EXTENTS_FL flag set on filesystem without extents support",
    );
    let inline = inode.has(flags::INLINE_DATA);
    let file = number >= superblock.first_file_inode();
    problem(
        inline && file && !superblock.has_incompat(incompat::INLINE_DATA),
        "has INLINE_DATA_FL flag on filesystem without inline data support",
    );
    problem(
        inline && inode.has(flags::EXTENTS),
        "has inline data and extent flags set",
    );
    let tree = extent::Header::decode(inode.block());
    problem(
        extents
            && used
            && !inode.has(flags::EXTENTS | flags::INLINE_DATA)
            && matches!(kind, Some(Kind::Directory | Kind::Regular))
            && tree.magic == extent::MAGIC
            && tree.max == extent::ROOT_ENTRIES
            && tree.depth <= extent::MAX_DEPTH,
        "missing EXTENT_FL, but is in extents format",
    );
}

/// Checks flags and fields for impossible values.
fn flags_and_fields(state: &mut State, inode: &Inode) {
    let superblock = &state.volume.superblock;
    let number = inode.number;
    let kind = inode.kind();
    let directory = kind == Some(Kind::Directory);
    let mut problem = |wrong: bool, what: &str| {
        if wrong {
            state.found.inode(number, what);
        }
    };
    problem(
        inode.has(flags::IMAGIC) && !superblock.has_compat(compat::IMAGIC_INODES),
        "has imagic flag set",
    );
    problem(inode.has(flags::INDEX) && !directory, NOT_A_DIRECTORY);
    problem(
        inode.has(flags::INDEX) && directory && !superblock.has_compat(compat::DIR_INDEX),
        "has INDEX_FL flag set on filesystem without htree support",
    );
    problem(
        inode.has(flags::VERITY) && !superblock.has_ro_compat(ro_compat::VERITY),
        "has verity flag on filesystem without verity support",
    );
    problem(
        inode.has(flags::ENCRYPT) && !superblock.has_incompat(incompat::ENCRYPT),
        "has encrypt flag on filesystem without encryption support",
    );
    problem(
        inode.has(flags::EA_INODE) && !superblock.has_incompat(incompat::EA_INODE),
        "has EA_INODE flag on filesystem without ea_inode support",
    );
    let special = matches!(
        kind,
        Some(Kind::CharDevice | Kind::BlockDevice | Kind::Fifo | Kind::Socket)
    );
    problem(
        special && inode.has(flags::EXTENTS | flags::INLINE_DATA),
        "special (device/socket/fifo) file has extents or inline-data flag set",
    );
    problem(
        (special || kind == Some(Kind::Symlink)) && inode.has(flags::IMMUTABLE | flags::APPEND),
        "special (device/socket/fifo/symlink) file has immutable or append-only flag set",
    );
    problem(
        special && inode.raw.size() != 0,
        "special (device/socket/fifo) file has non-zero size",
    );
    problem(
        !inode.extra_size_fits(),
        "has an extra size which is invalid",
    );
    problem(inode.raw.obsolete_fragment != 0, "i_faddr should be zero");
    // Other systems use these fields for other data.
    let linux = is_linux(superblock.creator_os);
    problem(
        linux && inode.raw.blocks_hi != 0 && !superblock.has_ro_compat(ro_compat::HUGE_FILE),
        "i_blocks_hi should be zero",
    );
    problem(
        linux && inode.raw.file_acl_hi != 0 && !superblock.has_incompat(incompat::BIT64),
        "i_file_acl_hi should be zero",
    );
    problem(
        directory && inode.raw.size_hi != 0 && !superblock.has_incompat(incompat::LARGEDIR),
        "i_size_high should be zero",
    );
    problem(
        [
            (inode.raw.atime, inode.raw.atime_extra),
            (inode.raw.ctime, inode.raw.ctime_extra),
            (inode.raw.mtime, inode.raw.mtime_extra),
            (inode.raw.crtime, inode.raw.crtime_extra),
        ]
        .into_iter()
        .any(|(seconds, extra)| seconds >> 31 == 1 && extra & 3 == 3),
        "timestamp(s) beyond 2310-04-04 are likely pre-1970",
    );
}

/// Checks and claims an inode's blocks, or its contents in their place.
fn contents(state: &mut State, inode: &Inode, facts: &Facts, attribute_blocks: u64) -> Map {
    let volume = state.volume;
    let number = inode.number;
    let mut map = Map::default();
    let inline = inode.has(flags::INLINE_DATA);
    match inode.kind() {
        Some(Kind::Regular | Kind::Directory) if !inline => map = blocks(state, inode),
        Some(Kind::Symlink) if !inline && !inode.is_fast_symlink(volume) => {
            map = blocks(state, inode);
        }
        Some(Kind::Regular | Kind::Directory | Kind::Symlink) if inline => {
            inline_data(state, inode, facts);
        }
        Some(kind @ (Kind::CharDevice | Kind::BlockDevice | Kind::Fifo | Kind::Socket))
            // The first words hold the device's number. Linux leaves data in the others.
            if inode.has(flags::IMMUTABLE)
                && (4..15).any(|index| word(inode.block(), index) != 0) =>
        {
            let kind = kind.name();
            let what = format_args!("is an illegal {kind}");
            state.found.inode(number, what);
        }
        _ => {}
    }
    if inode.kind() == Some(Kind::Symlink) && !inline {
        symlink(state, inode, &map);
    }
    if map.broken {
        // The inode's counts can't be correct then.
        return map;
    }
    let allocated: u64 = clusters_of(state, &map) + map.nodes.len() as u64 + attribute_blocks;
    let values: u64 = facts
        .value_inodes
        .iter()
        .map(|&(_, size)| u64::from(size).div_ceil(volume.block_size as u64 * volume.cluster_ratio))
        .sum();
    let file = number == ROOT_INODE || number >= volume.superblock.first_file_inode();
    if volume.cluster_ratio > 1
        && file
        && matches!(inode.kind(), Some(Kind::Regular | Kind::Directory))
        && !inode.has(flags::EXTENTS | flags::INLINE_DATA)
        && !map.runs.is_empty()
    {
        let what = "has blocks but no extents, on a filesystem with clusters";
        state.found.inode(number, what);
    }
    occupied(state, inode, allocated + values);
    size::check(state, inode, &map, inline);
    map
}

/// Checks that `i_blocks` matches a number of clusters.
fn occupied(state: &mut State, inode: &Inode, clusters: u64) {
    let volume = state.volume;
    let unit = volume.block_size as u64 / 512 * volume.cluster_ratio;
    let (sectors, expected) = (inode.sectors(volume), clusters * unit);
    if sectors != expected {
        let what = format_args!("i_blocks is {sectors}, should be {expected}");
        state.found.inode(inode.number, what);
    }
}

/// Returns the number of clusters of a file's data.
fn clusters_of(state: &State, map: &Map) -> u64 {
    let mut last = None;
    let mut count = 0;
    for run in &map.runs {
        let clusters = state.clusters(run.physical..run.physical + run.length);
        let again = state.volume.cluster_ratio > 1 && last == Some(clusters.start);
        count += clusters.end - clusters.start - u64::from(again);
        last = Some(clusters.end - 1);
    }
    count
}

/// Walks and claims the blocks of an inode.
pub(super) fn blocks(state: &mut State, inode: &Inode) -> Map {
    let mut visited = mem::take(&mut state.visited);
    let fixed = mem::take(&mut state.fixed);
    let map = Walk {
        volume: state.volume,
        found: state.found,
        visited: &mut visited,
        fixed: &fixed,
    }
    .map(inode);
    state.visited = visited;
    state.fixed = fixed;
    for &node in &map.nodes {
        let clusters = state.clusters(node..node + 1);
        state.claims.add(clusters, inode.number);
    }
    let mut last = None;
    for run in &map.runs {
        let clusters = state.clusters(run.physical..run.physical + run.length);
        // Two extents of a file may share a cluster.
        let again = state.volume.cluster_ratio > 1 && last == Some(clusters.start);
        let start = clusters.start + u64::from(again);
        last = Some(clusters.end - 1);
        state.claims.add(start..clusters.end, inode.number);
    }
    map
}

fn inline_data(state: &mut State, inode: &Inode, facts: &Facts) {
    let Some(rest) = &facts.inline_data else {
        let what = "has INLINE_DATA_FL flag but extended attribute not found";
        state.found.inode(inode.number, what);
        return;
    };
    let held = I_BLOCK + rest.len() as u64;
    let size = inode.raw.size();
    if inode.kind() == Some(Kind::Directory) && size != held {
        let what = format_args!("i_size is {size}, should be {held}");
        state.found.inode(inode.number, what);
    } else if size > held {
        let what = format_args!("i_size is {size}, beyond inline data of {held} bytes");
        state.found.inode(inode.number, what);
    }
}

fn symlink(state: &mut State, inode: &Inode, map: &Map) {
    let volume = state.volume;
    let size = inode.raw.size();
    let encrypted = inode.has(flags::ENCRYPT);
    let sound = if inode.is_fast_symlink(volume) {
        size > 0 && size < I_BLOCK && (encrypted || length(inode.block()) == size)
    } else {
        let mut block = Vec::new();
        size > 0
            && size < volume.block_size as u64
            && matches!(map.runs.as_slice(), [run] if run.logical == 0 && run.length == 1
                && volume.read_block(run.physical, &mut block).is_ok())
            && (encrypted || length(&block) == size)
    };
    if !sound {
        state.found.inode(inode.number, "symlink is invalid");
    }
}

/// Returns the length of a C string.
fn length(bytes: &[u8]) -> u64 {
    bytes.iter().take_while(|&&byte| byte != 0).count() as u64
}
