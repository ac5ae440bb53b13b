//! Writes an image in one pass: bodies as they arrive, then metadata, then the superblock.

use std::io::{Read, Seek, Write};

use crate::emit;
use crate::format::SUPERBLOCK_OFFSET;
use crate::output::Output;
use crate::tree::{Chunks, Data, Metadata, Tree};
use crate::{BLOCK_SIZE, Error, Result};
use crate::{Segment, sparse};

/// Properties of an image besides its files.
#[derive(Debug, Clone)]
pub struct Options {
    /// Identity of the filesystem, in the superblock.
    pub uuid: [u8; 16],
    /// The root directory.
    pub root: Metadata,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Length of the image in blocks.
    pub blocks: u32,
    /// Number of inodes.
    pub inodes: u64,
    /// Bytes of metadata: inodes, names, attributes.
    pub metadata: u64,
}

/// A streaming writer for one image.
///
/// Bodies are written to `W` as they arrive and metadata stays in memory until [`Writer::finish`].
/// The superblock is written last: an interrupted writer leaves no valid filesystem. The same calls
/// produce the same bytes.
pub struct Writer<W> {
    output: Output<W>,
    tree: Tree,
    uuid: [u8; 16],
}

impl<W: Write + Seek> Writer<W> {
    /// Starts an image in `out`, which must be empty. It is written from position 0 on, and blocks
    /// of zeros are skipped by seeking.
    ///
    /// # Errors
    ///
    /// Those of writing to `out`.
    pub fn new(out: W, options: Options) -> Result<Self> {
        let mut output = Output::new(out);
        output.zeros(BLOCK_SIZE)?; // the superblock's
        Ok(Self {
            output,
            tree: Tree::new(options.root),
            uuid: options.uuid,
        })
    }

    /// Appends a file's contents: exactly `size` bytes from `reader`. Further bytes are left
    /// unread.
    ///
    /// # Errors
    ///
    /// [`Error::ShortBody`] if `reader` ends early, [`Error::Body`] if it fails. The space of the
    /// bytes received is lost; the image can still be finished. [`Error::Output`] if writing fails;
    /// the writer is unusable then.
    pub fn body(&mut self, size: u64, reader: &mut dyn Read) -> Result<Data> {
        check_size(size)?;
        // A body that failed leaves the output at an arbitrary position.
        self.output.align()?;
        let block = self.output.block()?;
        self.output.copy(reader, size, size, 0)?;
        self.output.align()?;
        Ok(Data::Contiguous { block })
    }

    /// Appends the contents of a sparse file of `size` bytes. `segments` are its parts other than
    /// holes, ascending and disjoint; `reader` supplies their bytes without gaps.
    ///
    /// # Errors
    ///
    /// [`Error::Segment`] before anything is written; otherwise those of [`Writer::body`].
    pub fn sparse_body(
        &mut self,
        size: u64,
        segments: &[Segment],
        reader: &mut dyn Read,
    ) -> Result<Data> {
        check_size(size)?;
        sparse::check_segments(size, segments)?;
        let total = segments.iter().map(|s| s.length).sum();
        if total == size {
            return self.body(size, reader);
        }
        self.output.align()?;

        let bits = sparse::choose_chunk_bits(size, segments);
        let chunk = sparse::chunk_size(bits);
        let mut blocks = Vec::new();
        // The file is complete up to `done` bytes; `read` bytes came from `reader`.
        let mut done = 0;
        let mut read = 0;
        let mut later = segments.iter().filter(|s| s.length > 0).copied();
        let mut next = later.next();
        while done < size {
            let end = done.saturating_add(chunk).min(size);
            if next.is_none_or(|s| s.offset >= end) {
                blocks.push(Chunks::HOLE);
                done = end;
                continue;
            }
            blocks.push(self.output.block()?);
            while let Some(segment) = next.filter(|s| s.offset < end) {
                self.output.zeros(segment.offset - done)?;
                let length = segment.length.min(end - segment.offset);
                self.output.copy(reader, length, total, read)?;
                read += length;
                done = segment.offset + length;
                next = match segment.length - length {
                    0 => later.next(),
                    rest => Some(Segment {
                        offset: done,
                        length: rest,
                    }),
                };
            }
            self.output.zeros(end - done)?;
            self.output.align()?;
            done = end;
        }
        Ok(Data::Chunked(Box::new(Chunks {
            bits,
            blocks: blocks.into(),
        })))
    }

    /// Returns the metadata, which may be changed until [`Writer::finish`].
    pub fn tree(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// Writes the metadata and then the superblock. The caller pads, syncs and publishes.
    ///
    /// # Errors
    ///
    /// [`Error::Inode`] for an inode that the format can't hold; otherwise those of writing.
    pub fn finish(mut self) -> Result<(W, Summary)> {
        self.tree.count_links();
        self.write_metadata()
    }

    /// Writes `tree` as the metadata, in place of the writer's own and with the link counts that it has, and then the
    /// superblock.
    ///
    /// # Errors
    ///
    /// Those of [`Writer::finish`].
    pub(crate) fn finish_with(mut self, tree: Tree) -> Result<(W, Summary)> {
        self.tree = tree;
        self.write_metadata()
    }

    fn write_metadata(mut self) -> Result<(W, Summary)> {
        self.output.align()?;
        let plan = emit::Plan::new(&self.tree)?;
        let meta_block = self.output.block()?;
        let written = plan.write(&mut self.output, 0)?;
        let summary = Summary {
            blocks: self.output.block()?,
            inodes: plan.inodes(),
            metadata: self.output.position() - u64::from(meta_block) * BLOCK_SIZE,
        };
        let head = emit::head(&written, summary.blocks, self.uuid, &[]);
        let out = self.output.finish(SUPERBLOCK_OFFSET, &head)?;
        Ok((out, summary))
    }
}

fn check_size(size: u64) -> Result<()> {
    if size > sparse::FILE_SIZE_MAX {
        return Err(Error::FileTooLarge(size));
    }
    Ok(())
}
