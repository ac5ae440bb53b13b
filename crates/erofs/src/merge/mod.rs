//! Merges a stack of layers into one image that has only metadata ("fsmeta") and refers to the
//! layers for all file contents.
//!
//! The result is what overlayfs shows for the same layers, computed once. The images lie one after
//! the other in a flat space of blocks, each padded to the same alignment:
//!
//! ```text
//! | fsmeta | layer 0, the lowest | layer 1 | ...
//! ```
//!
//! fsmeta's files are plain inodes in that space. Its device table gives the position of each layer
//! in the space, so that Linux mounts fsmeta over one device that holds everything as well as over
//! one device per layer (`device=`).
//!
//! The merge corrects what a layer alone can't express to overlayfs: a hard link to a file of a
//! lower layer, and the attributes of a directory that the layer only implies. For a stack of
//! single layers the same corrections make a second small image, the fixup, which goes on top of
//! the stack.

mod apply;
mod fixup;
mod links;
mod load;
mod whole;

use std::io::{Seek, Write};

use self::apply::Merged;
use crate::emit;
use crate::format::{DeviceSlot, SUPERBLOCK_OFFSET};
use crate::output::Output;
use crate::source::ReadAt;
use crate::tree::Tree;
use crate::writer::Summary;
use crate::{BLOCK_SIZE, Error, Result};

/// A layer to be merged.
#[derive(Debug)]
pub struct Layer<'a, R: ?Sized> {
    /// Its image, padded or not. No file may be packed into its inode.
    pub image: &'a R,
    /// Tag of its device in the table: at most 64 bytes, for a layer the hexadecimal digits of its
    /// diff ID.
    pub tag: &'a [u8],
}

impl<R: ?Sized> Clone for Layer<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: ?Sized> Copy for Layer<'_, R> {}

/// The part of the flat space that a device takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceExtent {
    /// Its first block.
    pub first_block: u32,
    /// Its length in blocks, padding included.
    pub blocks: u32,
}

/// A written image that has only metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Length of the image in blocks.
    pub blocks: u32,
    /// Its length in blocks in the flat space. The caller extends the file to this length.
    pub padded_blocks: u32,
    /// The layers in the flat space, the lowest first.
    pub devices: Vec<DeviceExtent>,
    /// Number of inodes.
    pub inodes: u64,
}

/// A stack of layers, merged in memory.
#[derive(Debug)]
pub struct Merge {
    /// File data is addressed from the first block of the lowest layer.
    tree: Tree,
    /// The devices and their slots, at positions that do not include fsmeta yet. A slot has the
    /// length from the layer's superblock.
    devices: Vec<DeviceExtent>,
    slots: Vec<DeviceSlot>,
    /// Alignment of images in the flat space, in blocks.
    alignment: u32,
    first_layer: usize,
    fixup: Option<Tree>,
}

impl Merge {
    /// Reads and merges layers, the lowest first. Every image takes a multiple of
    /// `alignment` blocks in the flat space.
    ///
    /// # Errors
    ///
    /// [`Error::Layer`] with the cause: an image that is corrupt or whose files can't be referred
    /// to, or a hard link whose target is missing. [`Error::ImageTooLarge`] when 2^32 blocks don't
    /// suffice.
    pub fn of<R: ReadAt + ?Sized>(layers: &[Layer<'_, R>], alignment: u32) -> Result<Self> {
        let alignment = alignment.max(1);
        let mut devices: Vec<DeviceExtent> = Vec::new();
        let mut slots = Vec::new();
        let mut merged = Merged::new();
        for (index, layer) in layers.iter().enumerate() {
            let first_block = devices.last().map_or(0, |d| d.first_block + d.blocks);
            let in_layer = |source| Error::Layer {
                number: index + 1,
                tag: layer.tag.into(),
                source: Box::new(source),
            };
            let loaded = load::load(layer.image, first_block).map_err(in_layer)?;
            let blocks = loaded
                .size
                .div_ceil(BLOCK_SIZE)
                .checked_next_multiple_of(u64::from(alignment))
                .and_then(|blocks| u32::try_from(blocks).ok())
                .filter(|blocks| first_block.checked_add(*blocks).is_some())
                .ok_or(Error::ImageTooLarge)?;
            let mut tag = [0; 64];
            let named = layer.tag.len().min(tag.len());
            tag[..named].copy_from_slice(&layer.tag[..named]);
            slots.push(DeviceSlot {
                tag,
                blocks: loaded.blocks,
                first_block,
            });
            devices.push(DeviceExtent {
                first_block,
                blocks,
            });
            merged.apply(index, loaded).map_err(in_layer)?;
        }
        merged.settle_links();
        Ok(Self {
            fixup: fixup::fixup(&merged.tree, &merged.corrected),
            tree: merged.tree,
            devices,
            slots,
            alignment,
            first_layer: merged.first_layer,
        })
    }

    /// Returns the index of the lowest visible layer: above 0 if a layer's root directory is
    /// opaque. overlayfs ignores that marker on a root, so a stack starts at this layer.
    pub fn first_layer(&self) -> usize {
        self.first_layer
    }

    /// Returns the merged tree. File data is addressed from the first block of the lowest layer.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the merged tree for changes: for an fsmeta that lacks some names
    /// ([`Tree::unlink`]). The fixup stays that of the whole tree.
    pub fn tree_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// Whether a stack of the layers needs the fixup on top to show the merged tree.
    pub fn needs_fixup(&self) -> bool {
        self.fixup.is_some()
    }

    /// Writes the merged tree. `out` must be empty; the caller pads it to
    /// [`Written::padded_blocks`] and syncs it.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Writer::finish`].
    pub fn write_fsmeta<W: Write + Seek>(&self, out: W, uuid: [u8; 16]) -> Result<(W, Written)> {
        self.write(&self.tree, out, uuid)
    }

    /// Writes the fixup like fsmeta, with the fixup in fsmeta's place in the flat space. If no
    /// fixup is needed, it is an empty directory with the root's attributes.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Writer::finish`].
    pub fn write_fixup<W: Write + Seek>(&self, out: W, uuid: [u8; 16]) -> Result<(W, Written)> {
        match &self.fixup {
            Some(tree) => self.write(tree, out, uuid),
            None => self.write(&self.bare(), out, uuid),
        }
    }

    /// Writes the merged tree as an image of its own, with the files' contents. `contents` has the layers in the flat
    /// space, the lowest at its begin: each padded to the alignment that the merge was given.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Writer`]; [`Error::Body`] if `contents` can't be read.
    pub fn write_whole<W: Write + Seek>(
        &self,
        contents: &impl ReadAt,
        out: W,
        uuid: [u8; 16],
    ) -> Result<(W, Summary)> {
        whole::whole(&self.tree, contents, out, uuid)
    }

    /// Writes the fixup like [`Merge::write_whole`]: one more layer for the top of the stack, which needs no other
    /// device. If no fixup is needed, it is an empty directory with the root's attributes.
    ///
    /// # Errors
    ///
    /// Those of [`Merge::write_whole`].
    pub fn write_whole_fixup<W: Write + Seek>(
        &self,
        contents: &impl ReadAt,
        out: W,
        uuid: [u8; 16],
    ) -> Result<(W, Summary)> {
        match &self.fixup {
            Some(tree) => whole::whole(tree, contents, out, uuid),
            None => whole::whole(&self.bare(), contents, out, uuid),
        }
    }

    /// Returns an empty directory with the root's attributes.
    fn bare(&self) -> Tree {
        Tree::new(self.tree.inode(self.tree.root()).meta.clone())
    }

    fn write<W: Write + Seek>(&self, tree: &Tree, out: W, uuid: [u8; 16]) -> Result<(W, Written)> {
        let plan = emit::Plan::new(tree)?;
        let head_blocks = emit::head_blocks(self.slots.len());
        let padded = (head_blocks + plan.blocks()).next_multiple_of(u64::from(self.alignment));
        let end = self.devices.last().map_or(0, |d| d.first_block + d.blocks);
        let padded = u32::try_from(padded)
            .ok()
            .filter(|padded| padded.checked_add(end).is_some_and(|end| end < u32::MAX))
            .ok_or(Error::ImageTooLarge)?;

        let mut output = Output::new(out);
        output.zeros(head_blocks * BLOCK_SIZE)?;
        let metadata = plan.write(&mut output, padded)?;
        let blocks = output.block()?;
        let slots: Vec<DeviceSlot> = self
            .slots
            .iter()
            .map(|slot| DeviceSlot {
                first_block: slot.first_block + padded,
                ..*slot
            })
            .collect();
        let head = emit::head(&metadata, blocks, uuid, &slots);
        let out = output.finish(SUPERBLOCK_OFFSET, &head)?;
        let devices = self.devices.iter().map(|device| DeviceExtent {
            first_block: device.first_block + padded,
            ..*device
        });
        Ok((
            out,
            Written {
                blocks,
                padded_blocks: padded,
                devices: devices.collect(),
                inodes: plan.inodes(),
            },
        ))
    }
}
