//! Takes over a layer that is an EROFS image of our own, as `mica push --erofs` publishes it: merged metadata points
//! into its blocks, so it has to stay as it is, byte for byte.
//!
//! It is checked to be like what a conversion writes: sound, without a byte of a file in its metadata, without
//! compression, with no other markers, with the UUID that the archive gives it. What follows the image, its hash tree,
//! is left out and not looked at. Whether the archive converts to these bits, only a conversion shows.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, Seek, SeekFrom, Write};

use micabox_erofs::format::FileType;
use micabox_erofs::reader::Inode;
use micabox_erofs::{
    BLOCK_SIZE, Cached, Error as ErofsError, Reader, Xattr, check as erofs_check, overlay,
};
use micabox_tar::printable;

use super::converted::Converted;
use super::error::Reason;
use super::memory::{Exceeded, Memory};
use super::native::{CHECK_MEMORY, exceeded, of_entry};
use super::source::BUFFER;
use super::tree::data_memory;
use super::xattr;
use crate::limits::Limit;
use crate::store::{Checksum, ChecksummedFile};
use crate::{ENTRY_MEMORY, Limits};

/// A layer's image that is not checked yet.
pub(super) struct Written {
    file: File,
    checksum: Checksum,
    /// Its length in blocks.
    blocks: u64,
}

impl Written {
    /// Takes an image of so many blocks, whose checksum someone says.
    pub(super) fn of(file: File, checksum: Checksum, blocks: u64) -> Self {
        Self {
            file,
            checksum,
            blocks,
        }
    }
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
        return exceeded(Limit::LayerSize, limits.layer_size, None);
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
        return exceeded(Limit::Entries, limits.entries, None);
    }
    let mut memory = Memory::new(limits, Some(blob_size));
    memory
        .check(inodes.saturating_mul(ENTRY_MEMORY))
        .or_else(|Exceeded { setting, limit }| exceeded(setting, limit, None))?;
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
    let mut linked = HashSet::new();
    let mut failed = None;
    let walked = reader.walk(|path, inode| {
        entries += 1;
        let checked = if entries > limits.entries {
            exceeded(Limit::Entries, limits.entries, Some(path))
        } else {
            check_entry(&reader, path, inode, &mut linked, &mut memory, limits)
        };
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

/// Checks one name, and counts the memory that a merge takes for it. `linked` has the inodes with several names that
/// were seen.
fn check_entry(
    reader: &Reader<Cached<File>>,
    path: &[u8],
    inode: &Inode,
    linked: &mut HashSet<u64>,
    memory: &mut Memory,
    limits: &Limits,
) -> Result<(), Reason> {
    if path.len() as u64 > limits.path_length {
        return exceeded(Limit::PathLength, limits.path_length, Some(path));
    }
    let name = path.rsplit(|byte| *byte == b'/').next();
    if name.is_some_and(|name| name.starts_with(b".wh.")) {
        return Err(entry_problem(path, "it has the name of a whiteout"));
    }
    let mut taken = ENTRY_MEMORY + path.len() as u64;
    let is_new = inode.nlink < 2 || inode.kind == FileType::Directory || linked.insert(inode.nid);
    if is_new {
        let xattrs = reader
            .xattrs(inode)
            .map_err(|error| of_entry(path, &error))?;
        check_markers(path, inode, &xattrs)?;
        taken += xattr::memory(&xattrs);
    }
    if is_new && inode.kind == FileType::Regular {
        let data = reader.data(inode).map_err(|error| of_entry(path, &error))?;
        let data = data.ok_or_else(|| entry_problem(path, "it is packed into its inode"))?;
        taken += data_memory(&data);
    }
    let counted = memory.take(taken);
    counted.or_else(|Exceeded { setting, limit }| exceeded(setting, limit, Some(path)))
}

/// Refuses markers that no conversion writes: they would mean something to overlayfs or to a merge.
fn check_markers(path: &[u8], inode: &Inode, xattrs: &[Xattr]) -> Result<(), Reason> {
    let mut markers = xattrs.iter().filter(|x| overlay::is_marker(&x.name));
    match markers.find(|marker| !is_written(inode, marker, xattrs)) {
        Some(Xattr { name, .. }) => {
            let name = printable(name);
            let problem = format!("its attribute {name} is of no layer that mica converts");
            Err(entry_problem(path, &problem))
        }
        None => Ok(()),
    }
}

/// Returns whether a conversion writes this marker, beside the inode's other attributes.
pub(super) fn is_written(inode: &Inode, marker: &Xattr, xattrs: &[Xattr]) -> bool {
    let has = |name: &[u8]| xattrs.iter().any(|xattr| &*xattr.name == name);
    let Xattr { name, value } = marker;
    match (inode.kind, &**name) {
        (FileType::Directory, overlay::OPAQUE | overlay::IMPLIED) => **value == *b"y",
        (FileType::Directory, overlay::ORIGIN) => value.is_empty(),
        (FileType::Regular, overlay::METACOPY) => {
            inode.size == 0 && value.is_empty() && has(overlay::REDIRECT)
        }
        (FileType::Regular, overlay::REDIRECT) => has(overlay::METACOPY) && is_absolute(value),
        _ => false,
    }
}

/// Returns whether a path begins at the root and leads only downwards.
fn is_absolute(path: &[u8]) -> bool {
    let Some(path) = path.strip_prefix(b"/") else {
        return false;
    };
    let mut parts = path.split(|byte| *byte == b'/');
    parts.all(|part| !matches!(part, b"" | b"." | b".."))
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
