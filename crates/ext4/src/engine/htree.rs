//! Indexed directories: a tree from hashes of names to blocks of entries.

use alloc::vec::Vec;

use super::directory::{Found, clear_entries};
use super::{Ext4, Ino};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Errno, Error, Place, Result};
use crate::format::directory::{
    self, Entries, FileType, INDEX_ENTRY_SIZE, NODE_ENTRIES_OFFSET, ROOT_ENTRIES_OFFSET,
    ROOT_INFO_OFFSET, RootInfo,
};
use crate::format::fields;
use crate::format::hash::{self, Version};
use crate::format::inode::flags;
use micabox_file::narrow::{saturate8, saturate16};

/// A block of the index on the path to a leaf.
#[derive(Debug, Clone, Copy)]
struct Step {
    block: u64,
    kind: Kind,
    /// Offset of limit, count and entries.
    at: usize,
    /// Index of the entry that leads to the next block.
    position: usize,
    count: usize,
    limit: usize,
}

/// Returns the hash (0 for the first entry) and the block of an index entry.
fn index_entry(block: &[u8], at: usize, position: usize) -> (u32, u32) {
    let offset = at + position * INDEX_ENTRY_SIZE;
    let hash = if position == 0 {
        0
    } else {
        fields::get(block, offset)
    };
    // The upper bits once had another purpose.
    (hash, fields::get::<u32>(block, offset + 4) & 0x0fff_ffff)
}

fn put_index_entry(block: &mut [u8], at: usize, position: usize, hash: u32, leaf: u32) {
    let offset = at + position * INDEX_ENTRY_SIZE;
    if position != 0 {
        fields::put(block, offset, hash);
    }
    fields::put(block, offset + 4, leaf);
}

fn set_count(block: &mut [u8], at: usize, count: usize) {
    fields::put(block, at + 2, saturate16(count));
}

fn insert_index_entry(block: &mut [u8], at: usize, position: usize, hash: u32, leaf: u32) {
    let count = usize::from(fields::get::<u16>(block, at + 2));
    let from = at + position * INDEX_ENTRY_SIZE;
    let to = at + count * INDEX_ENTRY_SIZE;
    if position > 0 && from <= to && to + INDEX_ENTRY_SIZE <= block.len() {
        block.copy_within(from..to, from + INDEX_ENTRY_SIZE);
        put_index_entry(block, at, position, hash, leaf);
        set_count(block, at, count + 1);
    }
}

impl<D: BlockDevice> Ext4<D> {
    fn hash_version(&self, byte: u8) -> Result<Version> {
        Version::from_byte(byte, self.geometry.unsigned_hash)
            .ok_or(Error::Unsupported("an unknown directory hash"))
    }

    /// Returns the path from an index's root to the leaf for a name's hash, the hash and its
    /// version.
    fn index_path(&mut self, directory: Ino, name: &[u8]) -> Result<(Vec<Step>, u32, Version)> {
        let corrupt = |problem| Place::Inode(directory).corrupt(problem);
        let root = self.map_block(directory, 0)?;
        let kind = self.directory_kind(directory, 0)?;
        let bytes = self.blocks.read(&self.io, root, kind)?;
        let info = RootInfo::decode(bytes.get(ROOT_INFO_OFFSET..).unwrap_or_default());
        let most = if self.geometry.has_large_dir { 3 } else { 2 };
        if info.info_length != 8 || info.unused_flags & 1 != 0 || info.indirect_levels > most {
            return Err(corrupt("the root of the directory's index makes no sense"));
        }
        let version = self.hash_version(info.hash_version)?;
        let (hash, _) = hash::hash(version, self.geometry.hash_seed, name);
        let mut path = Vec::with_capacity(usize::from(info.indirect_levels) + 1);
        let (mut block, mut kind, mut at) = (root, kind, ROOT_ENTRIES_OFFSET);
        for level in (0..=info.indirect_levels).rev() {
            let bytes = self.blocks.read(&self.io, block, kind)?;
            let limit = usize::from(fields::get::<u16>(bytes, at));
            let count = usize::from(fields::get::<u16>(bytes, at + 2));
            let room = directory::index_limit(bytes.len(), at, self.geometry.has_checksums);
            if count == 0 || count > limit || limit != usize::from(room) {
                return Err(corrupt("a block of the directory's index makes no sense"));
            }
            let (mut low, mut high) = (1, count);
            while low < high {
                let middle = (low + high) / 2;
                if index_entry(bytes, at, middle).0 > hash {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            let position = low - 1;
            let child = index_entry(bytes, at, position).1;
            path.push(Step {
                block,
                kind,
                at,
                position,
                count,
                limit,
            });
            if level > 0 {
                block = self.map_block(directory, child)?;
                kind = self.directory_kind(directory, child)?;
                at = NODE_ENTRIES_OFFSET;
            }
        }
        Ok((path, hash, version))
    }

    /// Returns the leaf at the end of a path: number within the directory, block, kind.
    fn leaf_of(&mut self, directory: Ino, path: &[Step]) -> Result<(u32, u64, Kind)> {
        let step = path
            .last()
            .ok_or(Place::Inode(directory).corrupt("an empty index"))?;
        let bytes = self.blocks.read(&self.io, step.block, step.kind)?;
        let (_, logical) = index_entry(bytes, step.at, step.position);
        if logical == 0 {
            return Err(Place::Inode(directory).corrupt("the directory's index leads to its root"));
        }
        let block = self.map_block(directory, logical)?;
        let kind = self.directory_kind(directory, logical)?;
        Ok((logical, block, kind))
    }

    /// Finds a name in an indexed directory.
    pub(crate) fn find_indexed(&mut self, directory: Ino, name: &[u8]) -> Result<Option<Found>> {
        let (mut path, hash, _) = self.index_path(directory, name)?;
        loop {
            let (_, block, kind) = self.leaf_of(directory, &path)?;
            if let Some(found) = self.find_in_block(block, kind, name)? {
                return Ok(Some(found));
            }
            if !self.next_leaf(directory, &mut path, hash)? {
                return Ok(None);
            }
        }
    }

    /// Moves a path to the next leaf, if names with the hash continue there.
    fn next_leaf(&mut self, directory: Ino, path: &mut [Step], hash: u32) -> Result<bool> {
        let Some(level) = path.iter().rposition(|step| step.position + 1 < step.count) else {
            return Ok(false);
        };
        let Some(step) = path.get_mut(level) else {
            return Ok(false);
        };
        step.position += 1;
        let bytes = self.blocks.read(&self.io, step.block, step.kind)?;
        let (next, mut child) = index_entry(bytes, step.at, step.position);
        if next & 1 == 0 || next & !1 != hash {
            return Ok(false);
        }
        for below in level + 1..path.len() {
            let block = self.map_block(directory, child)?;
            let kind = self.directory_kind(directory, child)?;
            let bytes = self.blocks.read(&self.io, block, kind)?;
            let at = NODE_ENTRIES_OFFSET;
            let count = usize::from(fields::get::<u16>(bytes, at + 2));
            let limit = usize::from(fields::get::<u16>(bytes, at));
            child = index_entry(bytes, at, 0).1;
            if let Some(step) = path.get_mut(below) {
                *step = Step {
                    block,
                    kind,
                    at,
                    position: 0,
                    count,
                    limit,
                };
            }
        }
        Ok(true)
    }

    /// Adds a name to an indexed directory.
    pub(crate) fn add_indexed(
        &mut self,
        directory: Ino,
        name: &[u8],
        ino: Ino,
        file_type: FileType,
    ) -> Result<()> {
        loop {
            let (path, hash, version) = self.index_path(directory, name)?;
            let (_, block, kind) = self.leaf_of(directory, &path)?;
            if self.insert_entry(block, kind, name, ino, file_type)? {
                return Ok(());
            }
            // No room in the leaf: split it, or first the full index block above it.
            match path.iter().rposition(|step| step.count < step.limit) {
                Some(last) if last + 1 == path.len() => {
                    self.split_leaf(directory, &path, block, kind, version, hash)?;
                }
                Some(parent) => self.split_index(directory, &path, parent)?,
                None => self.deepen_index(directory, &path)?,
            }
        }
    }

    /// Moves the upper half of a leaf's names, by hash, to a new leaf.
    fn split_leaf(
        &mut self,
        directory: Ino,
        path: &[Step],
        block: u64,
        kind: Kind,
        version: Version,
        new_hash: u32,
    ) -> Result<()> {
        let Some(step) = path.last().copied() else {
            return Ok(());
        };
        let has_types = self.geometry.has_types;
        let seed = self.geometry.hash_seed;
        let old = self.blocks.read(&self.io, block, kind)?.to_vec();
        let mut names = Vec::new();
        for entry in Entries::new(&old, has_types) {
            let entry = entry.map_err(|problem| Place::Block(block).corrupt(problem))?;
            if entry.inode != 0 {
                names.push((hash::hash(version, seed, entry.name).0, entry));
            }
        }
        names.sort_by_key(|(hash, _)| *hash);
        let sizes =
            |(_, entry): &(u32, directory::Entry<'_>)| directory::entry_size(entry.name.len());
        let total: usize = names.iter().map(sizes).sum();
        let mut low = 0;
        let mut cut = 0;
        for name in &names {
            if low + sizes(name) / 2 > total / 2 {
                break;
            }
            low += sizes(name);
            cut += 1;
        }
        let cut = cut.clamp(1, names.len().saturating_sub(1).max(1));
        let (Some((first, _)), Some((before, _))) = (names.get(cut), names.get(cut - 1)) else {
            // A single name fills the block; the new name gets an empty one.
            return self.split_single(
                directory,
                step,
                names.first().map_or(0, |name| name.0),
                new_hash,
            );
        };
        // Equal hashes on both sides: bit 0 makes a search continue in the next leaf.
        let hash = if first == before { first | 1 } else { *first };
        let (logical, new_block, new_kind) = self.append_directory_block(directory)?;
        let room = self.geometry.directory_room();
        let has_checksums = self.geometry.has_checksums;
        let (stay, go) = names.split_at(cut);
        for (number, kind, part) in [(block, kind, stay), (new_block, new_kind, go)] {
            let bytes = self.blocks.write(&self.io, number, kind)?;
            clear_entries(bytes, room, has_checksums);
            pack(bytes, room, part.iter().map(|(_, entry)| entry));
        }
        let index = self.blocks.write(&self.io, step.block, step.kind)?;
        insert_index_entry(index, step.at, step.position + 1, hash, logical);
        Ok(())
    }

    /// Adds an empty leaf after or before one that a single name fills.
    fn split_single(
        &mut self,
        directory: Ino,
        step: Step,
        old_hash: u32,
        new_hash: u32,
    ) -> Result<()> {
        let (logical, _, _) = self.append_directory_block(directory)?;
        let index = self.blocks.write(&self.io, step.block, step.kind)?;
        if new_hash >= old_hash {
            let hash = if new_hash == old_hash {
                new_hash | 1
            } else {
                new_hash
            };
            insert_index_entry(index, step.at, step.position + 1, hash, logical);
        } else {
            let (_, full) = index_entry(index, step.at, step.position);
            put_index_entry(
                index,
                step.at,
                step.position,
                index_entry(index, step.at, step.position).0,
                logical,
            );
            insert_index_entry(index, step.at, step.position + 1, old_hash, full);
        }
        Ok(())
    }

    fn new_index_node(&mut self, directory: Ino) -> Result<(u32, u64, Kind)> {
        let (logical, block, kind) = self.append_directory_block(directory)?;
        let has_checksums = self.geometry.has_checksums;
        let bytes = self.blocks.write(&self.io, block, kind)?;
        bytes.fill(0);
        let length = bytes.len();
        directory::put_entry(bytes, 0, length, 0, 0, b"");
        let limit = directory::index_limit(length, NODE_ENTRIES_OFFSET, has_checksums);
        fields::put(bytes, NODE_ENTRIES_OFFSET, limit);
        Ok((logical, block, kind))
    }

    /// Moves the upper half of the full index block below `path[parent]` to a new one.
    fn split_index(&mut self, directory: Ino, path: &[Step], parent: usize) -> Result<()> {
        let (Some(above), Some(full)) = (path.get(parent).copied(), path.get(parent + 1).copied())
        else {
            return Ok(());
        };
        let cut = full.count / 2;
        let moved = full.count - cut;
        let old = self.blocks.read(&self.io, full.block, full.kind)?.to_vec();
        let (hash, _) = index_entry(&old, full.at, cut);
        let (logical, block, kind) = self.new_index_node(directory)?;
        let bytes = self.blocks.write(&self.io, block, kind)?;
        for index in 0..moved {
            let (hash, leaf) = index_entry(&old, full.at, cut + index);
            put_index_entry(bytes, NODE_ENTRIES_OFFSET, index, hash, leaf);
        }
        set_count(bytes, NODE_ENTRIES_OFFSET, moved);
        set_count(
            self.blocks.write(&self.io, full.block, full.kind)?,
            full.at,
            cut,
        );
        let bytes = self.blocks.write(&self.io, above.block, above.kind)?;
        insert_index_entry(bytes, above.at, above.position + 1, hash, logical);
        Ok(())
    }

    /// Adds a level to a full index: moves the root's entries to a new block below it.
    fn deepen_index(&mut self, directory: Ino, path: &[Step]) -> Result<()> {
        let Some(root) = path.first().copied() else {
            return Ok(());
        };
        let most = if self.geometry.has_large_dir { 3 } else { 2 };
        if path.len() > most {
            return Err(Errno::NoSpace.into());
        }
        let old = self.blocks.read(&self.io, root.block, root.kind)?.to_vec();
        let (logical, block, kind) = self.new_index_node(directory)?;
        let bytes = self.blocks.write(&self.io, block, kind)?;
        for position in 0..root.count {
            let (hash, leaf) = index_entry(&old, root.at, position);
            put_index_entry(bytes, NODE_ENTRIES_OFFSET, position, hash, leaf);
        }
        set_count(bytes, NODE_ENTRIES_OFFSET, root.count);
        let bytes = self.blocks.write(&self.io, root.block, root.kind)?;
        put_index_entry(bytes, root.at, 0, 0, logical);
        set_count(bytes, root.at, 1);
        fields::put(bytes, ROOT_INFO_OFFSET + 6, saturate8(path.len()));
        Ok(())
    }

    /// Builds an index for a directory of one block.
    pub(crate) fn make_index(&mut self, directory: Ino) -> Result<()> {
        let has_types = self.geometry.has_types;
        let has_checksums = self.geometry.has_checksums;
        let room = self.geometry.directory_room();
        let root = self.map_block(directory, 0)?;
        let kind = self.directory_kind(directory, 0)?;
        let old = self.blocks.read(&self.io, root, kind)?.to_vec();
        let mut names = Vec::new();
        let mut parent = None;
        for entry in Entries::new(&old, has_types) {
            let entry = entry.map_err(|problem| Place::Block(root).corrupt(problem))?;
            match entry.name {
                _ if entry.inode == 0 => {}
                b"." => {}
                b".." => parent = Some(entry.inode),
                _ => names.push(entry),
            }
        }
        let parent =
            parent.ok_or(Place::Inode(directory).corrupt("the directory has no \"..\""))?;
        let (logical, block, kind) = self.append_directory_block(directory)?;
        let leaf = self.blocks.write(&self.io, block, kind)?;
        clear_entries(leaf, room, has_checksums);
        pack(leaf, room, names.iter());
        let hash_version = self.geometry.default_hash;
        self.inode_mut(directory)?.raw.flags |= flags::INDEX;
        let kind = self.directory_kind(directory, 0)?;
        let bytes = self.blocks.write(&self.io, root, kind)?;
        bytes.fill(0);
        let length = bytes.len();
        let byte = if has_types {
            FileType::Directory as u8
        } else {
            0
        };
        directory::put_entry(bytes, 0, 12, directory, byte, b".");
        directory::put_entry(bytes, 12, length - 12, parent, byte, b"..");
        let info = RootInfo {
            hash_version,
            info_length: 8,
            ..RootInfo::default()
        };
        if let Some(place) = bytes.get_mut(ROOT_INFO_OFFSET..) {
            info.encode_into(place);
        }
        let limit = directory::index_limit(length, ROOT_ENTRIES_OFFSET, has_checksums);
        fields::put(bytes, ROOT_ENTRIES_OFFSET, limit);
        set_count(bytes, ROOT_ENTRIES_OFFSET, 1);
        put_index_entry(bytes, ROOT_ENTRIES_OFFSET, 0, 0, logical);
        Ok(())
    }

    /// Converts the blocks of a former index into blocks of entries.
    pub(crate) fn restore_linear(&mut self, directory: Ino) -> Result<()> {
        let has_checksums = self.geometry.has_checksums;
        let room = self.geometry.directory_room();
        let mut logical = 0;
        while let Some((number, kind)) = self.directory_block(directory, &mut logical)? {
            let is_root = logical == 1;
            let bytes = self.blocks.read(&self.io, number, kind)?;
            if !is_root && !crate::cache::is_index_node(bytes) {
                continue;
            }
            let parent = fields::get::<u32>(bytes, 12);
            let bytes = self.blocks.write(&self.io, number, kind)?;
            clear_entries(bytes, room, has_checksums);
            if is_root {
                directory::put_entry(bytes, 0, 12, directory, FileType::Directory as u8, b".");
                directory::put_entry(
                    bytes,
                    12,
                    room - 12,
                    parent,
                    FileType::Directory as u8,
                    b"..",
                );
            }
        }
        Ok(())
    }
}

/// Writes consecutive entries to an empty block; the last one extends to the end.
pub(crate) fn pack<'a, 'b: 'a>(
    block: &mut [u8],
    room: usize,
    entries: impl ExactSizeIterator<Item = &'a directory::Entry<'b>>,
) {
    let count = entries.len();
    let mut at = 0;
    for (index, entry) in entries.enumerate() {
        let size = directory::entry_size(entry.name.len());
        let length = if index + 1 == count { room - at } else { size };
        directory::put_entry(
            block,
            at,
            length,
            entry.inode,
            entry.file_type as u8,
            entry.name,
        );
        at += size;
    }
}
