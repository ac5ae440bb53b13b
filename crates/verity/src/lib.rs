#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
//!
//! # Format
//!
//! That of [cryptsetup][superblock], version 1, with SHA-256, blocks of 4 KiB and no salt: a salt makes equal blocks of
//! different images have different hashes, and here the same image has to have the same tree everywhere. Numbers are
//! little-endian. First comes the superblock, alone in its block, then the levels, the root's first: blocks of 128
//! hashes, of which each is that of a block in the level below. The root digest is the hash of the first level's only
//! block, or of an image's only block.
//!
//! [superblock]: https://gitlab.com/cryptsetup/cryptsetup/-/wikis/DMVerity

use std::ops::Range;

use sha2::{Digest, Sha256};

/// Bytes of a block, of the image and of the tree.
pub const BLOCK: usize = 4096;

/// Bytes of a hash.
const HASH: usize = 32;
/// Hashes in a block of the tree.
const FANOUT: usize = BLOCK / HASH;
const SIGNATURE: &[u8; 8] = b"verity\0\0";
/// Version of the superblock, and of how salt and block are hashed.
const VERSION: u32 = 1;

/// The tree of an image of which a part was seen. It keeps 32 bytes for each block of the image.
#[derive(Debug, Clone)]
pub struct Tree {
    uuid: [u8; 16],
    /// Hashes of the image's blocks, one after the other.
    hashes: Vec<u8>,
    /// The start of a block.
    rest: Vec<u8>,
}

impl Tree {
    /// Begins a tree. `uuid` is only a name in its superblock.
    #[must_use]
    pub fn new(uuid: [u8; 16]) -> Self {
        Self {
            uuid,
            hashes: Vec::new(),
            rest: Vec::new(),
        }
    }

    /// Adds the image's next bytes, in pieces of any length.
    pub fn update(&mut self, mut bytes: &[u8]) {
        if !self.rest.is_empty() {
            let (more, after) = bytes.split_at(bytes.len().min(BLOCK - self.rest.len()));
            self.rest.extend(more);
            bytes = after;
            if self.rest.len() < BLOCK {
                return;
            }
            let block = std::mem::take(&mut self.rest);
            self.hashes.extend(Sha256::digest(&block));
        }
        let blocks = bytes.chunks_exact(BLOCK);
        self.rest.extend(blocks.remainder());
        for block in blocks {
            self.hashes.extend(Sha256::digest(block));
        }
    }

    /// Adds so many blocks of zeros, as of a hole. What was added before is whole blocks: the rest of one that is not
    /// is taken for zeros.
    pub fn zeros(&mut self, blocks: u64) {
        self.end_block();
        if blocks > 0 {
            let hash = Sha256::digest([0; BLOCK]);
            (0..blocks).for_each(|_| self.hashes.extend(hash));
        }
    }

    /// Returns how many whole blocks were added.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.hashes.len() / HASH
    }

    /// Returns the root digest that these blocks have as an image of their own; `None` if they were not all added. There
    /// is no salt, so that a part of an image has the hashes that it has alone.
    #[must_use]
    pub fn root_of(&self, blocks: Range<usize>) -> Option<[u8; HASH]> {
        let bytes = blocks.start.checked_mul(HASH)?..blocks.end.checked_mul(HASH)?;
        Some(levels(self.hashes.get(bytes)?.to_vec()).0)
    }

    /// Returns the root digest and the tree, with its superblock: whole blocks. What is missing of the image's last
    /// block is taken for zeros, as a device has whole blocks only.
    #[must_use]
    pub fn finish(mut self) -> ([u8; HASH], Vec<u8>) {
        self.end_block();
        let mut bytes = superblock(&self.uuid, self.blocks() as u64);
        let (root, levels) = levels(self.hashes);
        bytes.extend(levels.iter().rev().flatten());
        (root, bytes)
    }

    fn end_block(&mut self) {
        if !self.rest.is_empty() {
            self.rest.resize(BLOCK, 0);
            self.hashes.extend(Sha256::digest(&self.rest));
            self.rest.clear();
        }
    }
}

/// Returns the root digest over the hashes of blocks, and the levels below it, the lowest first.
fn levels(mut hashes: Vec<u8>) -> ([u8; HASH], Vec<Vec<u8>>) {
    let mut levels = Vec::new();
    while hashes.len() > HASH {
        hashes.resize(hashes.len().next_multiple_of(FANOUT * HASH), 0);
        let above = hashes.chunks(BLOCK).flat_map(Sha256::digest).collect();
        levels.push(std::mem::replace(&mut hashes, above));
    }
    let mut root = [0; HASH];
    root.iter_mut()
        .zip(hashes)
        .for_each(|(to, byte)| *to = byte);
    (root, levels)
}

/// Returns the superblock of a tree over so many blocks, with its padding.
fn superblock(uuid: &[u8; 16], blocks: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK);
    bytes.extend(SIGNATURE);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(uuid);
    bytes.extend(b"sha256");
    bytes.resize(64, 0);
    bytes.extend((BLOCK as u32).to_le_bytes());
    bytes.extend((BLOCK as u32).to_le_bytes());
    bytes.extend(blocks.to_le_bytes());
    // The salt: its length, and 256 bytes for it.
    bytes.resize(BLOCK, 0);
    bytes
}
