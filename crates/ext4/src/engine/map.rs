//! Finds a file's blocks.

use super::{Ext4, Ino};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Errno, Place, Result};
use crate::format::extent::{self, ENTRY_SIZE, Extent, HEADER_SIZE, Header, Index};
use crate::format::fields;
use crate::format::inode::flags;

/// Blocks of a file that are consecutive on the device, or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Number of blocks from the requested one on; for a hole, at least that many.
    pub(crate) length: u32,
    /// The block on the device; `None` for a hole.
    pub(crate) physical: Option<u64>,
    /// Whether the blocks are allocated, but read as zeros.
    pub(crate) unwritten: bool,
}

impl Mapping {
    pub(crate) fn hole(length: u32) -> Self {
        Self {
            length,
            physical: None,
            unwritten: false,
        }
    }

    /// Returns the position of the bytes; `None` if they read as zeros.
    pub(crate) fn data(&self) -> Option<u64> {
        self.physical.filter(|_| !self.unwritten)
    }
}

/// Returns an entry of a node; zeros past the node's end.
#[inline]
pub(crate) fn entry(node: &[u8], index: usize) -> &[u8] {
    let at = HEADER_SIZE + index * ENTRY_SIZE;
    node.get(at..at + ENTRY_SIZE).unwrap_or_default()
}

/// Returns the number of entries in use.
#[inline]
pub(crate) fn entries(node: &[u8]) -> usize {
    fields::get::<u16>(node, 2).into()
}

/// Returns the index of the entry that covers `logical`: the last that does not start after it.
#[inline]
pub(crate) fn position(node: &[u8], logical: u32) -> Option<usize> {
    let (mut low, mut high) = (0, entries(node));
    while low < high {
        let middle = (low + high) / 2;
        if fields::get::<u32>(entry(node, middle), 0) <= logical {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low.checked_sub(1)
}

impl<D: BlockDevice> Ext4<D> {
    /// Returns the position of the blocks from `logical` on. An inode with inline data has none.
    pub(crate) fn map(&mut self, ino: Ino, logical: u32) -> Result<Mapping> {
        let inode = self.inode(ino)?;
        if inode.has(flags::EXTENTS) {
            if let Some(extent) = inode.last_extent
                && extent.logical <= logical
                && u64::from(logical) < extent.end()
            {
                return Ok(within(&extent, logical));
            }
            return self.map_extents(ino, logical);
        }
        if inode.has(flags::INLINE_DATA) {
            return Ok(Mapping::hole(u32::MAX - logical));
        }
        self.map_indirect(ino, logical)
    }

    fn map_extents(&mut self, ino: Ino, logical: u32) -> Result<Mapping> {
        let blocks_count = self.geometry.blocks_count;
        let inode = self.inode(ino)?;
        let seed = inode.seed;
        let root = inode.raw.block;
        let mut depth = check_root(ino, &root)?;
        let mut node: &[u8] = &root;
        // The logical block after the current part of the tree.
        let mut next = u32::MAX;
        while depth > 0 {
            let Some(position) = position(node, logical) else {
                return Ok(Mapping::hole(
                    first(node).unwrap_or(next).saturating_sub(logical).max(1),
                ));
            };
            if position + 1 < entries(node) {
                next = Index::decode(entry(node, position + 1)).logical;
            }
            let child = Index::decode(entry(node, position)).child;
            node = self.blocks.read(&self.io, child, Kind::Extents { seed })?;
            depth -= 1;
            if fields::get::<u16>(node, 6) != depth {
                return Err(
                    Place::Block(child).corrupt("a node at the wrong depth of its extent tree")
                );
            }
        }
        let at = position(node, logical);
        let following = at.map_or(0, |at| at + 1);
        if following < entries(node) {
            next = Extent::decode(entry(node, following)).logical;
        }
        if let Some(at) = at {
            let extent = Extent::decode(entry(node, at));
            if extent.length == 0
                || extent.physical == 0
                || extent
                    .physical
                    .checked_add(extent.length.into())
                    .is_none_or(|end| end > blocks_count)
            {
                return Err(Place::Inode(ino).corrupt("an extent past the filesystem's end"));
            }
            if u64::from(logical) < extent.end() {
                self.inode(ino)?.last_extent = Some(extent);
                return Ok(within(&extent, logical));
            }
        }
        Ok(Mapping::hole(next.saturating_sub(logical).max(1)))
    }

    /// Returns a block of a directory or of another file in which holes are damage.
    pub(crate) fn map_block(&mut self, ino: Ino, logical: u32) -> Result<u64> {
        self.map(ino, logical)?
            .data()
            .ok_or(Place::Inode(ino).corrupt("a block that must be there is a hole"))
    }

    /// Returns a byte offset's block number, for files up to the maximum size.
    pub(crate) fn logical(&self, offset: u64) -> Result<u32> {
        u32::try_from(offset >> self.geometry.block_bits).map_err(|_| Errno::FileTooLarge.into())
    }
}

fn within(extent: &Extent, logical: u32) -> Mapping {
    let skip = logical - extent.logical;
    Mapping {
        length: extent.length - skip,
        physical: Some(extent.physical + u64::from(skip)),
        unwritten: extent.unwritten,
    }
}

fn first(node: &[u8]) -> Option<u32> {
    (entries(node) > 0).then(|| fields::get(entry(node, 0), 0))
}

/// Checks the header of the root; returns the tree's depth.
pub(crate) fn check_root(ino: Ino, root: &[u8]) -> Result<u16> {
    let header = Header::decode(root);
    if header.magic != extent::MAGIC
        || header.max > extent::ROOT_ENTRIES
        || header.entries > header.max
        || header.depth > extent::MAX_DEPTH
    {
        return Err(Place::Inode(ino).corrupt("no root of an extent tree"));
    }
    Ok(header.depth)
}
