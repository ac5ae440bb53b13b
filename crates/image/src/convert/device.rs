//! Takes over a layer that is an EROFS image of our own, as `mica push --erofs` publishes it: merged metadata points
//! into its blocks, so it has to stay as it is, byte for byte.
//!
//! It is checked to be what a conversion could have written: sound, without a byte of a file in its metadata, without
//! compression, with the UUID that the archive gives it. Whether the archive converts to these bits, only a conversion
//! shows.

use std::fs::File;
use std::io::{BufRead, Seek, SeekFrom, Write};

use micabox_erofs::format::FileType;
use micabox_erofs::{
    BLOCK_SIZE, Cached, Data, Error as ErofsError, Reader, check as erofs_check, overlay,
};
use micabox_tar::printable;

use super::Converted;
use super::error::Reason;
use super::memory::{Exceeded, Memory};
use super::native::{CHECK_MEMORY, exceeded, of_entry};
use super::pipeline::BUFFER;
use crate::store::{Checksum, ChecksummedFile};
use crate::{ENTRY_MEMORY, Limits};

/// A layer's image that is not checked yet.
pub(super) struct Written {
    file: File,
    checksum: Checksum,
    /// Its length in blocks.
    blocks: u64,
}

/// Writes the image to `out`, and leaves out what follows it: its hash tree. Also returns how many bytes there were
/// in all.
pub(super) fn write(
    bytes: &mut dyn BufRead,
    mut out: ChecksummedFile,
    limits: &Limits,
) -> Result<(Written, u64), Reason> {
    let mut buffer = vec![0; BUFFER];
    let mut length = None;
    let mut at = 0;
    loop {
        let count = fill(bytes, &mut buffer)?;
        let read = buffer.get_mut(..count).unwrap_or_default();
        let length = match length {
            Some(length) => length,
            None => *length.insert(length_of(read, limits)?),
        };
        // Whole blocks but at the end, where the image's are complete.
        let own = length.saturating_sub(at).min(count as u64) as usize;
        write_blocks(&mut out, at, read.get(..own).unwrap_or_default())?;
        at += count as u64;
        if count < buffer.len() {
            if at < length {
                return Err(unusable(&ErofsError::Corrupt(
                    "it is shorter than its superblock says",
                )));
            }
            out.flush().map_err(Reason::Write)?;
            let (file, checksum) = out.finish().map_err(Reason::Write)?;
            // Blocks of zeros at its end were not written.
            file.set_len(length).map_err(Reason::Write)?;
            let blocks = length / BLOCK_SIZE;
            return Ok((
                Written {
                    file,
                    checksum,
                    blocks,
                },
                at,
            ));
        }
    }
}

/// Reads until the buffer is full, or there is no more.
fn fill(bytes: &mut dyn BufRead, buffer: &mut [u8]) -> Result<usize, Reason> {
    let mut filled = 0;
    while filled < buffer.len() {
        let rest = buffer.get_mut(filled..).unwrap_or_default();
        match bytes.read(rest).map_err(Reason::Source)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// Returns the length of the image that begins with `head`.
fn length_of(head: &[u8], limits: &Limits) -> Result<u64, Reason> {
    let length = micabox_erofs::reader::length_of(head).map_err(|error| unusable(&error))?;
    if length > limits.layer_size {
        return exceeded("layer-size", limits.layer_size, None);
    }
    Ok(length)
}

/// Writes blocks, but for those of zeros, which become holes.
fn write_blocks(out: &mut ChecksummedFile, at: u64, bytes: &[u8]) -> Result<(), Reason> {
    let is_zero = |block: &&[u8]| block.iter().all(|byte| *byte == 0);
    let mut blocks = bytes.chunks(BLOCK_SIZE as usize).peekable();
    let mut start = 0;
    while blocks.peek().is_some() {
        while blocks.next_if(is_zero).is_some() {
            start += BLOCK_SIZE as usize;
        }
        let mut end = start;
        while let Some(block) = blocks.next_if(|block| !is_zero(block)) {
            end += block.len();
        }
        if end > start {
            let run = bytes.get(start..end).unwrap_or_default();
            out.seek(SeekFrom::Start(at + start as u64))
                .and_then(|_| out.write_all(run))
                .map_err(Reason::Write)?;
        }
        start = end;
    }
    Ok(())
}

/// Checks an image of `size` bytes, with its hash tree, from a blob of `blob_size` bytes.
pub(super) fn check(
    written: Written,
    size: u64,
    blob_size: u64,
    uuid: [u8; 16],
    limits: &Limits,
) -> Result<Converted, Reason> {
    let unusable = |error: ErofsError| unusable(&error);
    let image = Cached::new(written.file).map_err(Reason::Write)?;
    let inodes = Reader::open(&image).map_err(unusable)?.inode_count();
    if inodes > limits.entries {
        return exceeded("entries", limits.entries, None);
    }
    let mut memory = Memory::new(limits, Some(blob_size));
    let refuse = |Exceeded { setting, limit }| exceeded(setting, limit, None);
    memory
        .check(inodes.saturating_mul(ENTRY_MEMORY))
        .or_else(refuse)?;
    let most = limits.metadata_size / CHECK_MEMORY;
    if let Some(finding) = erofs_check::check_within(&image, most).first() {
        let finding = finding.to_string();
        return Err(Reason::ForeignErofs(printable(finding.as_bytes())));
    }
    let reader = Reader::open(image).map_err(unusable)?;
    let foreign = |problem: &str| Err(Reason::ForeignErofs(problem.to_owned()));
    if !reader.devices().is_empty() {
        return foreign("its files' bytes are in other images");
    }
    if reader.uuid() != uuid {
        return foreign("its UUID is not that of the archive that its manifest names");
    }
    let mut entries = 0;
    let mut failed = None;
    let walked = reader.walk(|path, inode| {
        entries += 1;
        let checked = check_entry(&reader, path, inode, entries, &mut memory, limits);
        checked.map_err(|reason| {
            failed = Some(reason);
            ErofsError::Corrupt("not checked further")
        })
    });
    match failed {
        Some(reason) => return Err(reason),
        None => walked.map_err(unusable)?,
    }
    Ok(Converted {
        blocks: written.blocks,
        checksum: written.checksum,
        inodes,
        uncompressed_size: size,
        entries,
        dropped_xattrs: 0,
        recipe: None,
    })
}

fn check_entry(
    reader: &Reader<Cached<File>>,
    path: &[u8],
    inode: &micabox_erofs::reader::Inode,
    entries: u64,
    memory: &mut Memory,
    limits: &Limits,
) -> Result<(), Reason> {
    if entries > limits.entries {
        return exceeded("entries", limits.entries, Some(path));
    }
    if path.len() as u64 > limits.path_length {
        return exceeded("path-length", limits.path_length, Some(path));
    }
    let refuse = |Exceeded { setting, limit }| exceeded(setting, limit, Some(path));
    memory
        .check(entries.saturating_mul(ENTRY_MEMORY))
        .or_else(refuse)?;
    let of_entry = |error| of_entry(path, &error);
    if inode.kind == FileType::Regular
        && let Some(Data::Chunked(chunks)) = reader.data(inode).map_err(of_entry)?
        && chunks.blocks.len() as u64 > limits.sparse_segments.saturating_mul(2)
    {
        return exceeded("sparse-segments", limits.sparse_segments, Some(path));
    }
    if inode.kind == FileType::Regular && reader.data(inode).map_err(of_entry)?.is_none() {
        return Err(entry_problem(path, "it is packed into its inode"));
    }
    let xattrs = reader.xattrs(inode).map_err(of_entry)?;
    let is_redirected = inode.kind == FileType::Directory
        && xattrs.iter().any(|xattr| &*xattr.name == overlay::REDIRECT);
    if is_redirected {
        return Err(entry_problem(path, "it is a redirected directory"));
    }
    Ok(())
}

fn entry_problem(path: &[u8], problem: &str) -> Reason {
    Reason::Entry {
        entry: printable(path),
        problem: problem.to_owned(),
    }
}

fn unusable(error: &ErofsError) -> Reason {
    Reason::ForeignErofs(printable(error.to_string().as_bytes()))
}
