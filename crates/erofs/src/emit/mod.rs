//! Lays out and writes the metadata of an image; used by the writer and the merge.
//!
//! The metadata is one run of blocks:
//!
//! ```text
//! inodes, each with its attributes and its inline directory or symbolic link
//! attributes that several inodes share
//! whole blocks of directories and symbolic links
//! ```
//!
//! The first pass decides every position, so that the second can write in order. An inode's number
//! is its position, so nothing can be written before the first pass is complete.

mod directory;
mod head;
mod place;
mod xattrs;

use std::collections::HashMap;
use std::io::{Seek, Write};

use self::place::Places;
use self::xattrs::SharedXattrs;
use crate::Timestamp;
use crate::error::InodeProblem;
use crate::format::{self, FileType, INODE_SLOT, Layout, RawInode};
use crate::output::Output;
use crate::tree::{Chunks, Data, Inode, InodeId, Kind, Tree};
use crate::{BLOCK_SIZE, Error, Result};
use micabox_file::narrow::{saturate16, saturate32};

pub(crate) use self::head::{blocks as head_blocks, head};

/// Marks an inode without a place, or content without blocks of its own.
const NONE: u32 = u32::MAX;

/// The position of an inode and of what belongs to it.
struct Placed {
    id: InodeId,
    /// First of the content's own blocks, relative to the first content block of the image; or
    /// [`NONE`].
    block: u32,
    /// Bytes of a directory or a symbolic link; unused for other types.
    size: u64,
    /// How the content is laid out.
    layout: Layout,
}

/// The layout of a tree's metadata.
pub(crate) struct Plan<'t> {
    tree: &'t Tree,
    /// The inodes that are written, by position.
    placed: Vec<Placed>,
    /// Inode numbers by id; [`NONE`] for inodes that are not reachable.
    nids: Vec<u32>,
    shared: SharedXattrs<'t>,
    build_time: Timestamp,
    /// Bytes of the inode area.
    inode_bytes: u64,
    /// Number of blocks after the shared attributes.
    content_blocks: u32,
    chunked: bool,
}

/// What the superblock records about the written metadata.
pub(crate) struct Written {
    meta_block: u32,
    xattr_block: u32,
    root_nid: u16,
    inodes: u64,
    build_time: Timestamp,
    chunked: bool,
}

impl<'t> Plan<'t> {
    /// Decides all positions, and checks that everything can be stored.
    pub(crate) fn new(tree: &'t Tree) -> Result<Self> {
        let order = order(tree);
        let build_time = most_common_time(tree, &order);
        let shared = SharedXattrs::collect(tree, &order);
        let mut plan = Self {
            tree,
            placed: Vec::with_capacity(order.len()),
            nids: vec![NONE; tree.len()],
            shared,
            build_time,
            inode_bytes: 0,
            content_blocks: 0,
            chunked: false,
        };
        let mut places = Places::new();
        for id in order {
            plan.place(id, &mut places)
                .map_err(|error| error.at(tree, id))?;
        }
        plan.inode_bytes = places.end();
        let nids = &plan.nids;
        plan.placed.sort_unstable_by_key(|p| nids[p.id.index()]);
        Ok(plan)
    }

    /// Returns the number of inodes that are written.
    pub(crate) fn inodes(&self) -> u64 {
        self.placed.len() as u64
    }

    /// Returns the length of the metadata in blocks.
    pub(crate) fn blocks(&self) -> u64 {
        (self.inode_bytes + self.shared.size()).div_ceil(BLOCK_SIZE)
            + u64::from(self.content_blocks)
    }

    fn place(&mut self, id: InodeId, places: &mut Places) -> Result<(), Failure> {
        let inode = self.tree.inode(id);
        check(inode)?;
        let xattrs = self.shared.body_size(inode)?;
        let fixed = self.inode_size(inode) + xattrs;

        let (size, body) = match &inode.kind {
            Kind::Directory(_) => {
                let size = directory::size(self.tree, id);
                (size, size % BLOCK_SIZE)
            }
            Kind::Symlink(target) => (target.len() as u64, target.len() as u64),
            Kind::File {
                data: Data::Chunked(chunks),
                ..
            } => {
                self.chunked = true;
                let list = chunks.blocks.len() as u64 * 4;
                let at = places.place(fixed + list, self.inode_size(inode));
                return self.push(id, at, NONE, 0, Layout::ChunkBased);
            }
            _ => (0, 0),
        };
        let inline = match body {
            0 => None,
            _ => places.place_with_tail(fixed, body),
        };
        let at = inline.unwrap_or_else(|| places.place(fixed, self.inode_size(inode)));
        let (layout, blocks) = match inline {
            Some(_) => (Layout::FlatInline, size / BLOCK_SIZE),
            None => (Layout::FlatPlain, size.div_ceil(BLOCK_SIZE)),
        };
        let block = match blocks {
            0 => NONE,
            _ => self.reserve(blocks)?,
        };
        self.push(id, at, block, size, layout)
    }

    fn push(
        &mut self,
        id: InodeId,
        at: u64,
        block: u32,
        size: u64,
        layout: Layout,
    ) -> Result<(), Failure> {
        match u32::try_from(at / INODE_SLOT) {
            Ok(nid) if nid != NONE => self.nids[id.index()] = nid,
            _ => return Err(Error::TooManyInodes.into()),
        }
        self.placed.push(Placed {
            id,
            block,
            size,
            layout,
        });
        Ok(())
    }

    fn reserve(&mut self, blocks: u64) -> Result<u32, Failure> {
        let first = self.content_blocks;
        self.content_blocks = u32::try_from(blocks)
            .ok()
            .and_then(|blocks| first.checked_add(blocks))
            .ok_or(Error::ImageTooLarge)?;
        Ok(first)
    }

    fn is_compact(&self, inode: &Inode) -> bool {
        is_small(inode) && inode.meta.mtime == self.build_time
    }

    fn inode_size(&self, inode: &Inode) -> u64 {
        if self.is_compact(inode) {
            format::COMPACT_SIZE as u64
        } else {
            format::EXTENDED_SIZE as u64
        }
    }

    /// Writes the metadata at the output's current block. Adds `data_base` to the block numbers of
    /// all file data.
    pub(crate) fn write<W: Write + Seek>(
        &self,
        output: &mut Output<W>,
        data_base: u32,
    ) -> Result<Written> {
        let meta_block = output.block()?;
        let meta_end = u64::from(meta_block) + self.blocks();
        if meta_end >= u64::from(u32::MAX) {
            return Err(Error::ImageTooLarge);
        }
        let start = output.position();
        let shared_at = start + self.inode_bytes;
        // Shared attributes are addressed from the start of a block, in units of 4 bytes.
        let xattr_block = saturate32(shared_at / BLOCK_SIZE);
        let shared_base = (shared_at % BLOCK_SIZE / 4) as u32;
        let content_block = saturate32(meta_end) - self.content_blocks;

        let mut bytes = Vec::new();
        for placed in &self.placed {
            let nid = self.nids[placed.id.index()];
            let at = start + u64::from(nid) * INODE_SLOT;
            output.zeros(at - output.position())?;
            bytes.clear();
            self.encode(placed, shared_base, content_block, data_base, &mut bytes);
            output.write(&bytes)?;
        }
        output.zeros(shared_at - output.position())?;
        bytes.clear();
        self.shared.encode(&mut bytes);
        output.write(&bytes)?;
        output.align()?;
        self.write_content(output)?;

        Ok(Written {
            meta_block,
            xattr_block,
            // The root comes first, so its number is small.
            root_nid: saturate16(self.nids[self.tree.root().index()]),
            inodes: self.inodes(),
            build_time: self.build_time,
            chunked: self.chunked,
        })
    }

    /// Encodes an inode and everything that directly follows it.
    fn encode(
        &self,
        placed: &Placed,
        shared_base: u32,
        content_block: u32,
        data_base: u32,
        bytes: &mut Vec<u8>,
    ) {
        let inode = self.tree.inode(placed.id);
        let own_block = match placed.block {
            NONE => 0,
            block => content_block + block,
        };
        let kind = file_type(inode);
        let (size, union) = match &inode.kind {
            Kind::Directory(_) | Kind::Symlink(_) => (placed.size, own_block),
            Kind::File { size: 0, .. } => (0, 0),
            Kind::File {
                size,
                data: Data::Contiguous { block },
            } => (*size, block.saturating_add(data_base)),
            Kind::File {
                size,
                data: Data::Chunked(chunks),
            } => (*size, u32::from(chunks.bits)),
            Kind::CharDevice(device) | Kind::BlockDevice(device) => (0, *device),
            Kind::Fifo | Kind::Socket => (0, 0),
        };
        let mut body = Vec::new();
        self.shared.encode_body(inode, shared_base, &mut body);
        let raw = RawInode {
            layout: placed.layout,
            xattr_count: format::xattr_count(body.len()),
            mode: kind.mode_bits() | (inode.meta.mode & 0o7777),
            nlink: inode.nlink,
            size,
            union,
            ino: self.nids[placed.id.index()],
            uid: inode.meta.uid,
            gid: inode.meta.gid,
            mtime: inode.meta.mtime,
        };
        if self.is_compact(inode) {
            bytes.extend_from_slice(&raw.encode_compact());
        } else {
            bytes.extend_from_slice(&raw.encode_extended());
        }
        bytes.extend_from_slice(&body);

        match &inode.kind {
            Kind::Symlink(target) if placed.layout == Layout::FlatInline => {
                bytes.extend_from_slice(target);
            }
            Kind::Directory(_) if placed.layout == Layout::FlatInline => {
                let tail = directory::last_block(self.tree, placed.id, &self.nids);
                bytes.extend_from_slice(&tail);
            }
            Kind::File {
                data: Data::Chunked(chunks),
                ..
            } => {
                for &block in &chunks.blocks {
                    let block = match block {
                        Chunks::HOLE => block,
                        _ => block.saturating_add(data_base),
                    };
                    bytes.extend_from_slice(&block.to_le_bytes());
                }
            }
            _ => {}
        }
    }

    /// Writes the blocks of directories and symbolic links that are not inline, in the order in
    /// which they were reserved: the order of the plan before it was sorted.
    fn write_content<W: Write + Seek>(&self, output: &mut Output<W>) -> Result<()> {
        let mut owners: Vec<&Placed> = self.placed.iter().filter(|p| p.block != NONE).collect();
        owners.sort_unstable_by_key(|p| p.block);
        for placed in owners {
            match &self.tree.inode(placed.id).kind {
                Kind::Symlink(target) => output.write(target)?,
                _ => {
                    let mut left = match placed.layout {
                        Layout::FlatInline => placed.size / BLOCK_SIZE,
                        _ => u64::MAX,
                    };
                    directory::for_each_block(self.tree, placed.id, &self.nids, |block| {
                        if left == 0 {
                            return Ok(());
                        }
                        left -= 1;
                        output.write(block)?;
                        output.align()
                    })?;
                }
            }
            output.align()?;
        }
        Ok(())
    }
}

/// Returns the reachable inodes in the best order for reading: the children of a directory are
/// adjacent, and the descendants of the first child precede those of the second.
fn order(tree: &Tree) -> Vec<InodeId> {
    let mut seen = vec![false; tree.len()];
    let mut order = vec![tree.root()];
    let mut pending = vec![tree.root()];
    seen[tree.root().index()] = true;
    while let Some(directory) = pending.pop() {
        let first = pending.len();
        for (_, id) in tree.entries(directory) {
            if !std::mem::replace(&mut seen[id.index()], true) {
                order.push(id);
                if tree.inode(id).is_directory() {
                    pending.push(id);
                }
            }
        }
        pending[first..].reverse();
    }
    order
}

/// Returns the modification time that makes the most inodes compact. The earliest wins a tie.
fn most_common_time(tree: &Tree, order: &[InodeId]) -> Timestamp {
    let mut counts: HashMap<Timestamp, u32> = HashMap::new();
    for inode in order.iter().map(|&id| tree.inode(id)) {
        // Only the kernel reads the superblock's time as signed.
        if is_small(inode) && inode.meta.mtime.seconds >= 0 {
            *counts.entry(inode.meta.mtime).or_default() += 1;
        }
    }
    counts
        .into_iter()
        .max_by_key(|&(time, count)| (count, std::cmp::Reverse(time)))
        .map_or(Timestamp::EPOCH, |(time, _)| time)
}

/// Whether everything except the time fits the compact form.
fn is_small(inode: &Inode) -> bool {
    let size = match &inode.kind {
        Kind::File { size, .. } => *size,
        // Directories are far below the limit: their blocks are counted with 32 bits.
        _ => 0,
    };
    format::fits_compact(size, inode.meta.uid, inode.meta.gid, inode.nlink)
}

fn file_type(inode: &Inode) -> FileType {
    match inode.kind {
        Kind::Directory(_) => FileType::Directory,
        Kind::File { .. } => FileType::Regular,
        Kind::Symlink(_) => FileType::Symlink,
        Kind::CharDevice(_) => FileType::CharDevice,
        Kind::BlockDevice(_) => FileType::BlockDevice,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
    }
}

/// Checks the fields of an inode other than its attributes.
fn check(inode: &Inode) -> Result<(), InodeProblem> {
    if inode.meta.mtime.nanos >= 1_000_000_000 {
        return Err(InodeProblem::Nanoseconds(inode.meta.mtime.nanos));
    }
    if let Kind::Symlink(target) = &inode.kind {
        if target.is_empty() || target.len() > format::SYMLINK_MAX {
            return Err(InodeProblem::SymlinkLength(target.len()));
        }
        if target.contains(&0) {
            return Err(InodeProblem::SymlinkNul);
        }
    }
    Ok(())
}

/// A failure whose path may still be unknown.
enum Failure {
    Inode(InodeProblem),
    Other(Error),
}

impl Failure {
    fn at(self, tree: &Tree, id: InodeId) -> Error {
        match self {
            Self::Inode(problem) => Error::Inode {
                path: tree.path_of(id).into(),
                problem,
            },
            Self::Other(error) => error,
        }
    }
}

impl From<InodeProblem> for Failure {
    fn from(problem: InodeProblem) -> Self {
        Self::Inode(problem)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}
