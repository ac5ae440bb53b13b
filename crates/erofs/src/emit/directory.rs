//! The contents of directories.
//!
//! A directory is a sequence of blocks. Each starts with its entries, followed by their names in
//! the same order. The kernel searches first for the block, then for the entry, so entries must be
//! sorted by name as raw bytes throughout, `.` and `..` included: `!x` sorts before them.

use crate::format::{self, DIRENT_SIZE, FileType};
use crate::tree::{InodeId, Tree};
use crate::{BLOCK_SIZE, Result};
use micabox_file::narrow::{in_memory, saturate16};

const BLOCK: usize = in_memory(BLOCK_SIZE);

/// Distributes entries over blocks.
#[derive(Default)]
struct Packer {
    full: u64,
    /// Bytes in the current block.
    used: usize,
}

impl Packer {
    /// Adds an entry and returns whether it starts a new block.
    fn add(&mut self, name: &[u8]) -> bool {
        let size = DIRENT_SIZE + name.len();
        let starts = self.used + size > BLOCK;
        if starts {
            self.full += 1;
            self.used = 0;
        }
        self.used += size;
        starts
    }
}

/// Returns all names in a directory, with `.` and `..` at their sorted positions.
fn entries(tree: &Tree, directory: InodeId) -> impl Iterator<Item = (&[u8], InodeId)> {
    let parent = tree.parent(directory).unwrap_or(directory);
    let mut dots = [(&b"."[..], directory), (&b".."[..], parent)]
        .into_iter()
        .peekable();
    let mut rest = tree.entries(directory).peekable();
    std::iter::from_fn(move || match (dots.peek(), rest.peek()) {
        (Some(dot), Some(other)) if dot.0 < other.0 => dots.next(),
        (_, Some(_)) => rest.next(),
        (_, None) => dots.next(),
    })
}

/// Returns the length of a directory's contents in bytes: whole blocks plus the used part of the
/// last.
pub(super) fn size(tree: &Tree, directory: InodeId) -> u64 {
    let mut packer = Packer::default();
    for (name, _) in entries(tree, directory) {
        packer.add(name);
    }
    packer.full * BLOCK_SIZE + packer.used as u64
}

/// Builds the blocks one by one; each has only its used length.
pub(super) fn for_each_block(
    tree: &Tree,
    directory: InodeId,
    nids: &[u32],
    mut emit: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut packer = Packer::default();
    let mut pending: Vec<(&[u8], InodeId)> = Vec::new();
    let mut block = Vec::with_capacity(BLOCK);
    for (name, inode) in entries(tree, directory) {
        if packer.add(name) {
            encode(tree, nids, &pending, &mut block);
            emit(&block)?;
            pending.clear();
        }
        pending.push((name, inode));
    }
    encode(tree, nids, &pending, &mut block);
    emit(&block)
}

/// Builds the last block, with only its used length.
pub(super) fn last_block(tree: &Tree, directory: InodeId, nids: &[u32]) -> Vec<u8> {
    let mut packer = Packer::default();
    let mut pending: Vec<(&[u8], InodeId)> = Vec::new();
    for (name, inode) in entries(tree, directory) {
        if packer.add(name) {
            pending.clear();
        }
        pending.push((name, inode));
    }
    let mut block = Vec::new();
    encode(tree, nids, &pending, &mut block);
    block
}

fn encode(tree: &Tree, nids: &[u32], entries: &[(&[u8], InodeId)], block: &mut Vec<u8>) {
    block.clear();
    // Fits in 16 bits: the offset is within a block.
    let mut name_offset = entries.len() * DIRENT_SIZE;
    for (name, id) in entries {
        let kind: FileType = super::file_type(tree.inode(*id));
        let nid = u64::from(nids[id.index()]);
        block.extend_from_slice(&format::encode_dirent(nid, saturate16(name_offset), kind));
        name_offset += name.len();
    }
    for (name, _) in entries {
        block.extend_from_slice(name);
    }
}
