//! Accounts for blocks, and converts files to a form of blocks that can be written.

use alloc::vec::Vec;

use super::directory::clear_entries;
use super::htree::pack;
use super::xattr_read::is_inline_data;
use super::{Ext4, Ino};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Place, Result};
use crate::format::directory::{self, FileType};
use crate::format::extent::{self, Extent, Header, MAX_LENGTH};
use crate::format::fields;
use crate::format::inode::{self, RawInode, flags};

/// Returns the root of an empty extent tree.
pub(crate) fn empty_root() -> [u8; 60] {
    let mut block = RawInode::default().block;
    let header = Header {
        magic: extent::MAGIC,
        max: extent::ROOT_ENTRIES,
        ..Header::default()
    };
    header.encode_into(&mut block);
    block
}

impl<D: BlockDevice> Ext4<D> {
    /// Adds `count` blocks to an inode's block count.
    pub(crate) fn add_blocks(&mut self, ino: Ino, count: u64) -> Result<()> {
        let sectors = self.block_units(ino, count)?;
        let raw = &mut self.inode_mut(ino)?.raw;
        raw.set_blocks(raw.blocks().saturating_add(sectors));
        Ok(())
    }

    /// Subtracts `count` blocks from an inode's block count.
    pub(crate) fn subtract_blocks(&mut self, ino: Ino, count: u64) -> Result<()> {
        let sectors = self.block_units(ino, count)?;
        let raw = &mut self.inode_mut(ino)?.raw;
        raw.set_blocks(raw.blocks().saturating_sub(sectors));
        Ok(())
    }

    fn block_units(&mut self, ino: Ino, count: u64) -> Result<u64> {
        let bits = self.geometry.block_bits - 9;
        let in_blocks = self.inode(ino)?.has(flags::HUGE_FILE);
        Ok(if in_blocks { count } else { count << bits })
    }

    /// Converts inline data and block maps to extents; called before a file's blocks change.
    pub(crate) fn make_extents(&mut self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.has(flags::EXTENTS) {
            return Ok(());
        }
        if inode.has(flags::INLINE_DATA) {
            if inode.is(inode::S_IFDIR) {
                return self.expand_inline_directory(ino);
            }
            let data = self.drop_inline_data(ino)?;
            return self.write_pages(ino, 0, &data);
        }
        self.convert_block_map(ino)
    }

    /// Removes the inline data from an inode, which then has no blocks, and returns it.
    fn drop_inline_data(&mut self, ino: Ino) -> Result<Vec<u8>> {
        let data = self.inline_data(ino)?;
        let mut attributes = self.inode_attributes(ino)?;
        attributes.retain(|attribute| !is_inline_data(attribute));
        self.store_inode_attributes(ino, &attributes)?;
        let inode = self.inode_mut(ino)?;
        inode.raw.flags = (inode.raw.flags & !flags::INLINE_DATA) | flags::EXTENTS;
        inode.raw.block = empty_root();
        Ok(data)
    }

    /// Moves the entries of a directory without blocks to a new block.
    pub(crate) fn expand_inline_directory(&mut self, ino: Ino) -> Result<()> {
        let parent = self.inline_parent(ino)?;
        let mut names: Vec<(Ino, FileType, Vec<u8>)> = Vec::new();
        self.inline_entries(ino, |entry| {
            names.push((entry.inode, entry.file_type, entry.name.to_vec()));
        })?;
        self.drop_inline_data(ino)?;
        self.inode_mut(ino)?.raw.set_size(0);
        let (_, block, kind) = self.append_directory_block(ino)?;
        let room = self.geometry.directory_room();
        let has_checksums = self.geometry.has_checksums;
        names.insert(0, (parent, FileType::Directory, b"..".to_vec()));
        names.insert(0, (ino, FileType::Directory, b".".to_vec()));
        let entries: Vec<directory::Entry<'_>> = names
            .iter()
            .map(|(inode, file_type, name)| directory::Entry {
                offset: 0,
                length: 0,
                inode: *inode,
                file_type: *file_type,
                name,
            })
            .collect();
        let bytes = self.blocks.write(&self.io, block, kind)?;
        clear_entries(bytes, room, has_checksums);
        pack(bytes, room, entries.iter());
        Ok(())
    }

    /// Converts a block map to extents.
    fn convert_block_map(&mut self, ino: Ino) -> Result<()> {
        let size = self.inode(ino)?.raw.size();
        let end = self.geometry.blocks_for(size);
        let mut extents: Vec<Extent> = Vec::new();
        let mut logical = 0u64;
        let mut budget = self.budget(ino);
        // e2fsck handles blocks past the size (preallocation did not exist then).
        while let Ok(number) = u32::try_from(logical)
            && logical < end
        {
            let mapping = self.map(ino, number)?;
            budget.take(&mapping)?;
            if let Some(physical) = mapping.physical {
                let mut done = 0;
                while done < mapping.length {
                    let length = (mapping.length - done).min(MAX_LENGTH);
                    extents.push(Extent {
                        logical: number + done,
                        length,
                        physical: physical + u64::from(done),
                        unwritten: false,
                    });
                    done += length;
                }
            }
            logical += u64::from(mapping.length.max(1));
        }
        let old = self.inode(ino)?.raw.block;
        let inode = self.inode_mut(ino)?;
        inode.raw.flags |= flags::EXTENTS;
        inode.raw.block = empty_root();
        inode.last_extent = None;
        for extent in extents {
            self.insert_extent(ino, extent)?;
        }
        for level in 1..=3 {
            self.free_map_blocks(ino, fields::get(&old, 44 + 4 * level), level)?;
        }
        Ok(())
    }

    /// Frees the blocks of a block map itself.
    fn free_map_blocks(&mut self, ino: Ino, pointer: u32, level: usize) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        if u64::from(pointer) >= self.geometry.blocks_count {
            return Err(Place::Inode(ino).corrupt("a block past the filesystem's end"));
        }
        if level > 1 {
            let numbers = self
                .blocks
                .read(&self.io, pointer.into(), Kind::Plain)?
                .to_vec();
            for number in numbers.chunks_exact(4) {
                self.free_map_blocks(ino, fields::get(number, 0), level - 1)?;
            }
        }
        self.free_metadata(pointer.into())?;
        self.subtract_blocks(ino, 1)
    }
}
