//! Checks the hash trees of indexed directories.

use hashbrown::HashMap;

use super::state::{Directory, State};
use super::volume::{Volume, buffer};
use crate::format::directory::{
    self, INDEX_ENTRY_SIZE, NODE_ENTRIES_OFFSET, ROOT_ENTRIES_OFFSET, ROOT_INFO_OFFSET, RootInfo,
};
use crate::format::features::incompat;
use crate::format::fields;
use crate::format::hash::{Version, hash};
use crate::format::inode::flags;
use crate::format::superblock::FLAG_UNSIGNED_HASH;

/// A value above all hashes.
const END: u32 = 0xffff_ffff;
/// `hash_version` of names that are hashed with a key.
const SIPHASH: u8 = 6;

/// The role of a block in an indexed directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Block 0: `.`, `..` and the root.
    Root,
    /// An inner node.
    Node,
    /// Entries with hashes from `from` to `to`, exclusive.
    Leaf {
        from: u32,
        to: u32,
        version: Option<Version>,
    },
}

/// Walks the tree from its root. Blocks that it does not reach are not part of the tree.
pub(super) fn walk(state: &mut State, directory: &Directory) -> HashMap<u64, Part> {
    let number = directory.number;
    let mut parts = HashMap::new();
    let volume = state.volume;
    let mut root = buffer(volume);
    if !read(volume, directory, 0, &mut root) {
        state
            .found
            .inode(number, "HTREE directory has an invalid root node");
        return parts;
    }
    let info = RootInfo::decode(root.get(ROOT_INFO_OFFSET..).unwrap_or_default());
    let unsigned = volume.superblock.flags & FLAG_UNSIGNED_HASH != 0;
    let version = Version::from_byte(info.hash_version, unsigned);
    let levels = if volume.has_incompat(incompat::LARGEDIR) {
        3
    } else {
        2
    };
    let keyed = info.hash_version == SIPHASH && directory.flags & flags::CASEFOLD != 0;
    let problem = if info.reserved != 0 || info.info_length != 8 {
        "HTREE directory has an invalid root node"
    } else if version.is_none() && !keyed {
        "HTREE directory has an unsupported hash version"
    } else if info.unused_flags & 1 != 0 {
        "HTREE directory uses an incompatible htree root node flag"
    } else if info.indirect_levels > levels {
        "HTREE directory has a tree depth which is too big"
    } else {
        ""
    };
    if !problem.is_empty() {
        state.found.inode(number, problem);
        return parts;
    }
    // Case folding needs tables that this crate does not have.
    let version = version.filter(|_| directory.flags & flags::CASEFOLD == 0);
    parts.insert(0, Part::Root);
    let mut tree = Tree {
        directory,
        version,
        parts: &mut parts,
    };
    let level = info.indirect_levels;
    tree.node(state, 0, &root, ROOT_ENTRIES_OFFSET, level, (0, END));
    let blocks = directory.size / volume.block_size as u64;
    for block in (0..blocks).filter(|block| !parts.contains_key(block)) {
        let what = format_args!("HTREE directory: block #{block} not referenced");
        state.found.inode(number, what);
        if state.found.is_full() {
            break;
        }
    }
    parts
}

struct Tree<'t> {
    directory: &'t Directory,
    version: Option<Version>,
    parts: &'t mut HashMap<u64, Part>,
}

impl Tree<'_> {
    fn node(
        &mut self,
        state: &mut State,
        block: u64,
        node: &[u8],
        offset: usize,
        level: u8,
        within: (u32, u32),
    ) {
        let volume = state.volume;
        let number = self.directory.number;
        let limit: u16 = fields::get(node, offset);
        let count: u16 = fields::get(node, offset + 2);
        let room = directory::index_limit(node.len(), offset, volume.has_checksums());
        if limit != room {
            let what = format_args!("HTREE directory: block #{block} has invalid limit ({limit})");
            return state.found.inode(number, what);
        }
        if count == 0 || count > limit {
            let what = format_args!("HTREE directory: block #{block} has invalid count ({count})");
            return state.found.inode(number, what);
        }
        if volume.has_checksums() {
            let at = directory::index_checksum_offset(node, offset);
            let right = directory::index_checksum_of(self.directory.seed, node, offset);
            if right != Some(fields::get(node, at)) {
                let what = format_args!("HTREE directory: block #{block} fails checksum");
                state.found.inode(number, what);
            }
        }
        let bytes = node.get(offset..).unwrap_or_default();
        let mut entries = bytes
            .chunks_exact(INDEX_ENTRY_SIZE)
            .take(count.into())
            .enumerate()
            .map(|(index, entry)| match index {
                // Limit and count take the place of the first hash.
                0 => (within.0, fields::get::<u32>(entry, 4)),
                _ => (fields::get(entry, 0), fields::get(entry, 4)),
            })
            .peekable();
        let mut last = 0;
        while let Some((from, child)) = entries.next() {
            if from < last || from > within.1 {
                let what =
                    format_args!("HTREE directory: block #{block} has an unordered hash table");
                state.found.inode(number, what);
                return;
            }
            last = from;
            let to = entries.peek().map_or(within.1, |(hash, _)| *hash);
            // The upper bits are reserved.
            self.child(state, u64::from(child & 0x0fff_ffff), level, (from, to));
            if state.found.is_full() {
                return;
            }
        }
    }

    fn child(&mut self, state: &mut State, block: u64, level: u8, within: (u32, u32)) {
        let volume = state.volume;
        let number = self.directory.number;
        if block >= self.directory.size / volume.block_size as u64 {
            let what = format_args!("HTREE directory: bad block number {block}");
            return state.found.inode(number, what);
        }
        let part = match level {
            0 => Part::Leaf {
                from: within.0,
                to: within.1,
                version: self.version,
            },
            _ => Part::Node,
        };
        if self.parts.insert(block, part).is_some() {
            let what = format_args!("HTREE directory: block #{block} referenced twice");
            return state.found.inode(number, what);
        }
        if level == 0 {
            return;
        }
        let mut node = buffer(volume);
        if !read(volume, self.directory, block, &mut node) {
            return;
        }
        let covers = directory::decode_length(fields::get(&node, 4), node.len()) == node.len();
        if fields::get::<u32>(&node, 0) != 0 || !covers {
            let what = format_args!("HTREE directory: block #{block}: node is invalid");
            return state.found.inode(number, what);
        }
        self.node(state, block, &node, NODE_ENTRIES_OFFSET, level - 1, within);
    }
}

/// Reads a directory's block, given its number within the directory.
fn read(
    volume: &Volume,
    directory: &Directory,
    logical: u64,
    into: &mut alloc::vec::Vec<u8>,
) -> bool {
    let next = directory
        .runs
        .partition_point(|run| run.logical + run.length <= logical);
    directory
        .runs
        .get(next)
        .filter(|run| run.logical <= logical)
        .is_some_and(|run| {
            volume
                .read_block(run.physical + (logical - run.logical), into)
                .is_ok()
        })
}

/// Returns the hash of a name in a leaf; `None` if it is unknown.
pub(super) fn hash_of(
    volume: &Volume,
    directory: &Directory,
    part: Option<Part>,
    name: &[u8],
) -> Option<u32> {
    let Some(Part::Leaf {
        version: Some(version),
        ..
    }) = part
    else {
        return None;
    };
    let _ = directory;
    Some(hash(version, volume.superblock.hash_seed, name).0)
}

/// Extends a range of hashes to include `hash`.
pub(super) fn extend(range: &mut Option<(u32, u32)>, hash: Option<u32>) {
    if let Some(hash) = hash {
        let (least, most) = range.unwrap_or((hash, hash));
        *range = Some((least.min(hash), most.max(hash)));
    }
}
