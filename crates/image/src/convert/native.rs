//! Converts layers that are EROFS images: containerd's `application/vnd.erofs.layer.v1` and the
//! draft EROFS image specification's `application/vnd.erofs`, plain or with `+zstd`.
//!
//! Such an image may have a layout that our guarantees exclude (file ends packed into inodes,
//! compressed files, foreign UUIDs), so its tree is copied into an image of our own. This requires its
//! bytes in a file, as its metadata may be anywhere.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, Read, Write};

use micabox_erofs::format::FileType;
use micabox_erofs::reader::{Extent, Inode};
use micabox_erofs::{
    BLOCK_SIZE, Cached, Data, Error as ErofsError, InodeId, Kind, Metadata, Options, Reader,
    Segment, Writer, check, overlay,
};
use micabox_tar::printable;

use super::device;
use super::error::Reason;
use super::inflate::Inflater;
use super::memory::{Exceeded, Memory};
use super::pipeline::check_size;
use super::tree::{Finished, SYMLINK_MODE, data_memory, erofs_reason};
use super::xattr;
use crate::limits::Limit;
use crate::store::ChecksummedFile;
use crate::{ENTRY_MEMORY, Limits};

/// Most memory that checking an image takes for each byte of its metadata: a four-byte number in a
/// list of pieces becomes a range.
pub(super) const CHECK_MEMORY: u64 = 8;

/// Writes the uncompressed image to a file, and returns its length.
pub(super) fn spool(bytes: &mut dyn BufRead, to: &mut File) -> Result<u64, Reason> {
    let mut length = 0;
    loop {
        let available = bytes.fill_buf().map_err(Reason::Source)?;
        if available.is_empty() {
            return Ok(length);
        }
        to.write_all(available).map_err(Reason::Write)?;
        let count = available.len();
        bytes.consume(count);
        length += count as u64;
    }
}

/// Copies an image whose digests were verified, from a blob of `blob_size` bytes. Also returns the
/// number of its names.
pub(super) fn copy(
    image: File,
    blob_size: u64,
    out: ChecksummedFile,
    uuid: [u8; 16],
    limits: &Limits,
) -> Result<(Finished<ChecksummedFile>, u64), Reason> {
    let unusable =
        |error: ErofsError| Reason::ForeignErofs(printable(error.to_string().as_bytes()));
    let image = Cached::new(image).map_err(Reason::Write)?;
    // The check limits an image to this number.
    let reader = Reader::open_compressed(image).map_err(unusable)?;
    let inodes = reader.inode_count();
    if inodes > limits.entries {
        return exceeded(Limit::Entries, limits.entries, None);
    }
    let memory = Memory::new(limits, Some(blob_size));
    memory
        .check(inodes.saturating_mul(ENTRY_MEMORY))
        .or_else(|Exceeded { setting, limit }| exceeded(setting, limit, None))?;
    let most = limits.metadata_size / CHECK_MEMORY;
    if let Some(finding) = check::check_read(&reader, most).first() {
        let finding = finding.to_string();
        return Err(Reason::ForeignErofs(printable(finding.as_bytes())));
    }
    if !reader.devices().is_empty() {
        return Err(Reason::ForeignErofs(
            "its files' bytes are in other images: make it one image (mkfs.erofs without --blobdev and --tar=i)"
                .to_owned(),
        ));
    }
    let root = reader.inode(reader.root()).map_err(unusable)?;
    let options = Options {
        uuid,
        root: metadata(&reader, b"/", &root)?,
    };
    let mut copy = Copy {
        writer: Writer::new(out, options).map_err(erofs_reason)?,
        reader: &reader,
        inflater: Inflater::new(&reader),
        inodes: HashMap::new(),
        directories: HashMap::new(),
        count: 0,
        memory,
        written: 0,
        blob_size,
        limits,
    };
    let mut failed = None;
    let walked = reader.walk(|path, inode| {
        copy.add(path, inode).map_err(|reason| {
            failed = Some(reason);
            ErofsError::Corrupt("not copied further")
        })
    });
    match failed {
        Some(reason) => return Err(reason),
        None => walked.map_err(unusable)?,
    }
    let entries = copy.count;
    let (out, summary) = copy.writer.finish().map_err(erofs_reason)?;
    Ok((
        Finished {
            out,
            summary,
            dropped_xattrs: 0,
        },
        entries,
    ))
}

struct Copy<'a> {
    reader: &'a Reader<Cached<File>>,
    inflater: Inflater<'a, Cached<File>>,
    writer: Writer<ChecksummedFile>,
    /// New inodes by the original's numbers, for hard links.
    inodes: HashMap<u64, InodeId>,
    directories: HashMap<Box<[u8]>, InodeId>,
    count: u64,
    /// Memory for names and inodes.
    memory: Memory,
    /// Bytes of files so far, in whole blocks. Blocks that files of the original share are not
    /// shared in the copy.
    written: u64,
    blob_size: u64,
    limits: &'a Limits,
}

impl Copy<'_> {
    fn add(&mut self, path: &[u8], inode: &Inode) -> Result<(), Reason> {
        self.count += 1;
        if self.count > self.limits.entries {
            return exceeded(Limit::Entries, self.limits.entries, Some(path));
        }
        if path.len() as u64 > self.limits.path_length {
            return exceeded(Limit::PathLength, self.limits.path_length, Some(path));
        }
        self.charge(path, ENTRY_MEMORY + path.len() as u64)?;
        let root = self.writer.tree().root();
        let Some((parent, name)) = split(path) else {
            self.directories.insert(path.into(), root);
            return Ok(());
        };
        let copied = match self.inodes.get(&inode.nid) {
            Some(&copied) => copied,
            None => {
                let metadata = metadata(self.reader, path, inode)?;
                self.charge(path, xattr::memory(&metadata.xattrs))?;
                let kind = self.kind(path, inode)?;
                let copied = self.writer.tree().add(metadata, kind);
                self.inodes.insert(inode.nid, copied);
                copied
            }
        };
        if inode.kind == FileType::Directory {
            self.directories.insert(path.into(), copied);
        }
        // The walk visits every directory before its entries.
        let directory = self.directories.get(parent).copied().unwrap_or(root);
        self.writer
            .tree()
            .link(directory, name, copied)
            .map_err(erofs_reason)?;
        Ok(())
    }

    /// Counts memory that is held until the copy is finished.
    fn charge(&mut self, path: &[u8], bytes: u64) -> Result<(), Reason> {
        let taken = self.memory.take(bytes);
        taken.or_else(|Exceeded { setting, limit }| exceeded(setting, limit, Some(path)))
    }

    /// Counts the bytes of a file before they are copied.
    fn charge_body(&mut self, path: &[u8], segments: &[Segment]) -> Result<(), Reason> {
        for segment in segments {
            let blocks = segment.length.next_multiple_of(BLOCK_SIZE);
            self.written = self.written.saturating_add(blocks);
        }
        check_size(self.written, self.blob_size, self.limits).map_err(|reason| match reason {
            Reason::Limit { setting, limit, .. } => Reason::Limit {
                setting,
                limit,
                entry: Some(printable(path)),
            },
            reason => reason,
        })
    }

    fn kind(&mut self, path: &[u8], inode: &Inode) -> Result<Kind, Reason> {
        Ok(match inode.kind {
            FileType::Directory => Kind::directory(),
            FileType::Regular if inode.size == 0 => Kind::EMPTY_FILE,
            FileType::Regular => Kind::File {
                size: inode.size,
                data: self.body(path, inode)?,
            },
            FileType::Symlink => {
                let target = self.reader.read_link(inode);
                Kind::Symlink(target.map_err(|error| of_entry(path, &error))?)
            }
            FileType::CharDevice => Kind::CharDevice(inode.device),
            FileType::BlockDevice => Kind::BlockDevice(inode.device),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
        })
    }

    fn body(&mut self, path: &[u8], inode: &Inode) -> Result<Data, Reason> {
        if self.reader.is_compressed(inode) {
            let whole = Segment {
                offset: 0,
                length: inode.size,
            };
            self.charge_body(path, &[whole])?;
            let mut body = self
                .inflater
                .file(inode)
                .map_err(|error| of_entry(path, &error))?;
            return self
                .writer
                .body(inode.size, &mut body)
                .map_err(|error| match error {
                    ErofsError::Output(_) => erofs_reason(error),
                    error => of_entry(path, &error),
                });
        }
        let extents = self
            .reader
            .extents(inode)
            .map_err(|error| of_entry(path, &error))?;
        let data: Vec<Extent> = extents
            .into_iter()
            .filter(|e| e.address.is_some())
            .collect();
        if data.len() as u64 > self.limits.sparse_segments {
            let most = self.limits.sparse_segments;
            return exceeded(Limit::SparseSegments, most, Some(path));
        }
        let segments: Vec<_> = data
            .iter()
            .map(|e| Segment {
                offset: e.offset,
                length: e.length,
            })
            .collect();
        self.charge_body(path, &segments)?;
        let mut body = Body {
            reader: self.reader,
            inode,
            data: data.into(),
            at: 0,
        };
        let data = self
            .writer
            .sparse_body(inode.size, &segments, &mut body)
            .map_err(|error| match error {
                ErofsError::Output(_) => erofs_reason(error),
                error => of_entry(path, &error),
            })?;
        self.charge(path, data_memory(&data))?;
        Ok(data)
    }
}

/// The bytes of a file without its holes.
struct Body<'a> {
    reader: &'a Reader<Cached<File>>,
    inode: &'a Inode,
    /// Extents that are still to be read, the first one from `at` on.
    data: VecDeque<Extent>,
    at: u64,
}

impl Read for Body<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(extent) = self.data.front() {
            let left = extent.length - self.at;
            if left == 0 {
                self.data.pop_front();
                self.at = 0;
                continue;
            }
            let most = left.min(buffer.len() as u64) as usize;
            let offset = extent.offset + self.at;
            let count = self
                .reader
                .read(self.inode, offset, &mut buffer[..most])
                .map_err(io::Error::other)?;
            self.at += count as u64;
            return Ok(count);
        }
        Ok(0)
    }
}

fn metadata(reader: &Reader<Cached<File>>, path: &[u8], inode: &Inode) -> Result<Metadata, Reason> {
    let xattrs = reader
        .xattrs(inode)
        .map_err(|error| of_entry(path, &error))?;
    // overlayfs's markers are valid in such a layer. Those that take contents or paths from lower
    // layers have no counterpart in OCI; no tool makes layers with them, but ours with those of a
    // conversion, whose layers are also in stacks for containerd.
    let foreign = xattrs.iter().find(|xattr| {
        let known = [overlay::OPAQUE, overlay::ORIGIN, overlay::XWHITEOUT];
        overlay::is_marker(&xattr.name)
            && !known.contains(&&*xattr.name)
            && !device::is_written(inode, xattr, &xattrs)
    });
    if let Some(xattr) = foreign {
        return Err(Reason::Entry {
            entry: printable(path),
            problem: format!("its attribute {} is of no layer", printable(&xattr.name)),
        });
    }
    Ok(Metadata {
        mode: match inode.kind {
            FileType::Symlink => SYMLINK_MODE,
            _ => inode.mode,
        },
        uid: inode.uid,
        gid: inode.gid,
        mtime: inode.mtime,
        xattrs,
    })
}

pub(super) fn of_entry(path: &[u8], error: &ErofsError) -> Reason {
    Reason::Entry {
        entry: printable(path),
        problem: printable(error.to_string().as_bytes()),
    }
}

pub(super) fn exceeded<T>(setting: Limit, limit: u64, path: Option<&[u8]>) -> Result<T, Reason> {
    Err(Reason::Limit {
        setting,
        limit,
        entry: path.map(printable),
    })
}

/// Splits a path into its directory and last name; `None` for the root.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    let (parent, name) = (&path[..slash], &path[slash + 1..]);
    (!name.is_empty()).then_some((if parent.is_empty() { b"/" } else { parent }, name))
}
