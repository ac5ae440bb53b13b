//! Merges a stack of layers into one image that has only metadata ("fsmeta") and points
//! into the layers for every byte of every file.
//!
//! The result is what overlayfs shows of the same layers, found out once. All images lie one
//! behind the other in a flat space of blocks, each padded to the same alignment:
//!
//! ```text
//! | fsmeta | layer 0, the lowest | layer 1 | ...
//! ```
//!
//! fsmeta's files are plain inodes in that space. Its device table says where in it each
//! layer starts, so that Linux mounts it over one device with everything in it as well as
//! over a device a layer (`device=`).
//!
//! What a layer alone can't say to overlayfs is put right here: a hard link to a file of a
//! lower layer, and the attributes of a directory that the layer only implies. For a stack
//! of single layers the same corrections make a second small image, the fixup, which goes
//! on top of the stack.

mod apply;
mod fixup;
mod links;
mod load;

use std::io::{Seek, Write};

use self::apply::Merged;
use crate::emit;
use crate::format::{DeviceSlot, SUPERBLOCK_OFFSET};
use crate::output::Output;
use crate::source::ReadAt;
use crate::tree::Tree;
use crate::{BLOCK_SIZE, Error, Result};

/// A layer to be merged.
#[derive(Debug)]
pub struct Layer<'a, R: ?Sized> {
    /// Its image, padded or not. No file may be packed into its inode.
    pub image: &'a R,
    /// What its device is called in the table: at most 64 bytes, for a layer the hexadecimal
    /// digits of its diff ID.
    pub tag: &'a [u8],
}

impl<R: ?Sized> Clone for Layer<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: ?Sized> Copy for Layer<'_, R> {}

/// What of the flat space a device takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceExtent {
    /// Its first block.
    pub first_block: u32,
    /// Its length in blocks, padding included.
    pub blocks: u32,
}

/// An image with metadata only, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Length of the image in blocks.
    pub blocks: u32,
    /// Its length in the flat space. The caller makes its file so long.
    pub padded_blocks: u32,
    /// The layers in the flat space, the lowest first.
    pub devices: Vec<DeviceExtent>,
    /// Number of inodes.
    pub inodes: u64,
}

/// A stack of layers, merged in memory.
#[derive(Debug)]
pub struct Merge {
    /// File data is counted from the first block of the lowest layer.
    tree: Tree,
    /// The same without fsmeta in front; and what the layers' superblocks say of their
    /// length.
    devices: Vec<DeviceExtent>,
    slots: Vec<DeviceSlot>,
    /// In blocks.
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
    /// [`Error::Layer`] with the cause: an image that is corrupt or can't be pointed into, or
    /// a hard link to nothing. [`Error::ImageTooLarge`] when 2^32 blocks don't suffice.
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

    /// Index of the lowest layer that can be seen at all: above 0 if a layer's root directory
    /// is opaque. overlayfs ignores that marker on a root; a stack starts at this layer.
    pub fn first_layer(&self) -> usize {
        self.first_layer
    }

    /// The merged tree. File data is counted from the first block of the lowest layer.
    pub fn tree(&self) -> &Tree {
        &self.tree
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

    /// Writes the fixup, in the same way as fsmeta and with itself in fsmeta's place in the
    /// flat space. Without need for one it is an empty directory with the root's attributes.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Writer::finish`].
    pub fn write_fixup<W: Write + Seek>(&self, out: W, uuid: [u8; 16]) -> Result<(W, Written)> {
        match &self.fixup {
            Some(tree) => self.write(tree, out, uuid),
            None => {
                let root = self.tree.inode(self.tree.root()).meta.clone();
                self.write(&Tree::new(root), out, uuid)
            }
        }
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
