//! Writes a filesystem as a tar archive (POSIX `pax`) that leaves nothing out but sockets, for
//! which archives have no word.
//!
//! Sources: POSIX.1-2017 `pax`, and the GNU tar manual, "Storing Sparse Files", format 1.0.
//! Extended attributes are in `SCHILY.xattr.` records, as star, GNU tar and Go have them.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use std::io::{self, Write};

use hashbrown::{HashMap, HashSet};
use tar::{EntryType, Header};

use crate::device::BlockDevice;
use crate::error::{Error, Place};
use crate::format::fields;
use crate::{DirEntry, Ext4, FileKind, Ino, Segment, Stat, Timestamp};

/// Bytes of a block of an archive.
const BLOCK: u64 = 512;
/// Bytes of contents written at once.
const PIECE: usize = 1 << 20;
/// Longest path. Deeper trees can be made, a directory at a time, and their archives would grow
/// with the square of their depth.
const PATH_MAX: usize = 64 << 10;
/// Bytes of a name and of a link's target in a header.
const NAME_MAX: usize = 100;
/// Largest numbers of an owner and of a size in a header.
const OWNER_MAX: u32 = 0o7_777_777;
const SIZE_MAX: u64 = 0o77_777_777_777;

/// Why an export ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The filesystem can't be read.
    #[error("\"{}\": {source}", path.escape_ascii())]
    Filesystem {
        /// The path within the archive.
        path: Vec<u8>,
        /// Why.
        source: Error,
    },
    /// The archive can't be written.
    #[error("cannot write the archive: {0}")]
    Output(#[from] io::Error),
}

/// What was exported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exported {
    /// Members of the archive.
    pub members: u64,
    /// Paths of sockets, which were left out.
    pub sockets: Vec<Vec<u8>>,
}

/// Writes the tree below a directory, which becomes `./`, names in order of their bytes.
///
/// # Errors
///
/// [`ExportError`]; the archive is not whole then.
pub fn export<D: BlockDevice, W: Write>(
    filesystem: &mut Ext4<D>,
    directory: Ino,
    output: W,
) -> Result<Exported, ExportError> {
    let statistics = filesystem.statistics();
    let bytes = statistics.blocks * u64::from(statistics.block_size);
    let mut export = Export {
        filesystem,
        output,
        places: Vec::new(),
        links: HashMap::new(),
        visited: HashSet::new(),
        left: bytes.saturating_mul(2),
        exported: Exported::default(),
    };
    export.tree(directory)?;
    // Two blocks of zeros.
    export.output.write_all(&[0; 2 * BLOCK as usize])?;
    export.output.flush()?;
    Ok(export.exported)
}

struct Export<'f, D, W> {
    filesystem: &'f mut Ext4<D>,
    output: W,
    /// Directories: each one's parent, by its number here, and name.
    places: Vec<(usize, Vec<u8>)>,
    /// The first path of each inode with several names: a directory's number, and a name there.
    links: HashMap<Ino, (usize, Vec<u8>)>,
    /// Directories: a damaged filesystem could have them in a circle.
    visited: HashSet<Ino>,
    /// What may still be written. Files that share blocks, and paths, could be without end: a
    /// sound filesystem's contents are no more than itself, and its paths are less.
    left: u64,
    exported: Exported,
}

impl<D: BlockDevice, W: Write> Export<'_, D, W> {
    fn tree(&mut self, root: Ino) -> Result<(), ExportError> {
        let mut path = Vec::new();
        self.places.push((0, Vec::new()));
        self.member(&path, 0, root)?;
        let mut stack = vec![(0, 0, self.names(&path, root)?.into_iter())];
        while let Some((place, length, names)) = stack.last_mut() {
            path.truncate(*length);
            let Some(entry) = names.next() else {
                stack.pop();
                continue;
            };
            path.extend_from_slice(&entry.name);
            if self.member(&path, *place, entry.ino)? {
                path.push(b'/');
                let names = self.names(&path, entry.ino)?;
                let number = self.places.len();
                self.places.push((*place, entry.name.into_vec()));
                stack.push((number, path.len(), names.into_iter()));
            }
        }
        Ok(())
    }

    /// The path of a name in a directory, given by its number.
    fn path_of(&self, place: usize, name: &[u8]) -> Vec<u8> {
        let mut parts = vec![name];
        let mut at = place;
        while let Some((parent, name)) = self.places.get(at).filter(|_| at > 0) {
            parts.push(name);
            at = *parent;
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// Accounts for bytes that are to be written.
    fn take(&mut self, path: &[u8], ino: Ino, bytes: u64) -> Result<(), ExportError> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            let problem = "files and paths so far add up to more than the filesystem";
            fail(path, Place::Inode(ino).corrupt(problem))
        })?;
        Ok(())
    }

    /// A directory's names in order.
    fn names(&mut self, path: &[u8], directory: Ino) -> Result<Vec<DirEntry>, ExportError> {
        if !self.visited.insert(directory) {
            let problem = "a directory with several names";
            return Err(fail(path, Place::Inode(directory).corrupt(problem)));
        }
        let mut names = self
            .filesystem
            .read_dir(directory)
            .map_err(|source| fail(path, source))?;
        names.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(names)
    }

    /// Writes one member, which is in the directory of number `place`; says whether it is a
    /// directory itself.
    fn member(&mut self, path: &[u8], place: usize, ino: Ino) -> Result<bool, ExportError> {
        if path.len() > PATH_MAX {
            // The whole of it helps as little in a message.
            let start = path.get(..NAME_MAX).unwrap_or_default();
            let problem = "below this are directories that are too deep for an archive";
            return Err(fail(start, Place::Inode(ino).corrupt(problem)));
        }
        self.take(path, ino, path.len() as u64)?;
        let stat = self
            .filesystem
            .stat(ino)
            .map_err(|source| fail(path, source))?;
        let Some(kind) = stat.kind() else {
            return Err(fail(path, Place::Inode(ino).corrupt("its type is unknown")));
        };
        if kind == FileKind::Socket {
            self.exported.sockets.push(path.to_vec());
            return Ok(false);
        }
        let mut member = Draft::new(&stat, path, kind);
        if kind != FileKind::Directory && stat.links > 1 {
            if let Some((place, name)) = self.links.get(&ino) {
                member.link_to(&self.path_of(*place, name));
                self.take(path, ino, member.target.len() as u64)?;
                return self.write(&member, 0).map(|()| false);
            }
            let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            self.links.insert(ino, (place, name.to_vec()));
        }
        self.xattrs(&mut member, path, ino)?;
        match kind {
            FileKind::Symlink => {
                let target = self.filesystem.read_link(ino);
                member.target = target.map_err(|source| fail(path, source))?;
                self.write(&member, 0)?;
            }
            FileKind::File => self.file(member, path, &stat)?,
            _ => self.write(&member, 0)?,
        }
        Ok(kind == FileKind::Directory)
    }

    fn xattrs(&mut self, member: &mut Draft, path: &[u8], ino: Ino) -> Result<(), ExportError> {
        let names = self.filesystem.xattr_names(ino);
        let mut names = names.map_err(|source| fail(path, source))?;
        names.sort_unstable();
        for name in names {
            let value = self.filesystem.xattr(ino, &name);
            let value = value.map_err(|source| fail(path, source))?;
            self.take(path, ino, value.len() as u64)?;
            // A record's key ends at the first `=`.
            if !name.contains(&b'=') {
                member.record(&[b"SCHILY.xattr.", &*name].concat(), &value);
            }
            // GNU tar takes access control lists as text only.
            let key: &[u8] = match &*name {
                b"system.posix_acl_access" => b"SCHILY.acl.access",
                b"system.posix_acl_default" => b"SCHILY.acl.default",
                _ => continue,
            };
            if let Some(text) = acl_text(&value) {
                member.record(key, text.as_bytes());
            }
        }
        Ok(())
    }

    fn file(&mut self, mut member: Draft, path: &[u8], stat: &Stat) -> Result<(), ExportError> {
        let segments = self.filesystem.segments(stat.ino);
        let mut segments = segments.map_err(|source| fail(path, source))?;
        for segment in &mut segments {
            segment.length = segment.length.min(stat.size.saturating_sub(segment.offset));
        }
        segments.retain(|segment| segment.length > 0);
        let held: u64 = segments.iter().map(|segment| segment.length).sum();
        self.take(path, stat.ino, held)?;
        let mut map = Vec::new();
        if held < stat.size {
            map = sparse_map(&segments, stat.size);
            member.record(b"GNU.sparse.major", b"1");
            member.record(b"GNU.sparse.minor", b"0");
            member.record(b"GNU.sparse.name", path);
            member.record(b"GNU.sparse.realsize", stat.size.to_string().as_bytes());
            // What programs that don't know the format are to unpack.
            member.path = [b"GNUSparseFile.0/", path].concat();
        } else {
            segments = vec![Segment {
                offset: 0,
                length: stat.size,
            }];
        }
        let size = map.len() as u64 + held;
        self.write(&member, size)?;
        self.output.write_all(&map)?;
        let mut buffer = vec![0; PIECE.min(stat.size as usize)];
        for segment in segments {
            let mut at = segment.offset;
            let end = segment.offset + segment.length;
            while at < end {
                let count = (end - at).min(buffer.len() as u64) as usize;
                let piece = buffer.get_mut(..count).unwrap_or_default();
                let got = self.filesystem.read(stat.ino, at, piece);
                if got.map_err(|source| fail(path, source))? != count {
                    let problem = "the file is shorter than its size";
                    return Err(fail(path, Place::Inode(stat.ino).corrupt(problem)));
                }
                self.output.write_all(piece)?;
                at += count as u64;
            }
        }
        self.pad(size)
    }

    /// Writes the headers of a member with `size` bytes of contents.
    fn write(&mut self, member: &Draft, size: u64) -> Result<(), ExportError> {
        self.exported.members += 1;
        let (header, records) = member.headers(size);
        if !records.is_empty() {
            let mut extended = Header::new_ustar();
            extended.set_entry_type(EntryType::XHeader);
            put_name(&mut extended.as_old_mut().name, b"PaxHeader");
            extended.set_mode(0o644);
            extended.set_uid(0);
            extended.set_gid(0);
            extended.set_mtime(0);
            extended.set_size(records.len() as u64);
            extended.set_cksum();
            self.output.write_all(extended.as_bytes())?;
            self.output.write_all(&records)?;
            self.pad(records.len() as u64)?;
        }
        self.output.write_all(header.as_bytes())?;
        Ok(())
    }

    /// Zeros from `size` bytes to the end of their last block.
    fn pad(&mut self, size: u64) -> Result<(), ExportError> {
        let padding = (size.wrapping_neg() % BLOCK) as usize;
        self.output.write_all(&vec![0; padding])?;
        Ok(())
    }
}

fn fail(path: &[u8], source: Error) -> ExportError {
    ExportError::Filesystem {
        path: path.to_vec(),
        source,
    }
}

/// The map before a sparse file's contents: decimal numbers, one a line, in whole blocks.
fn sparse_map(segments: &[Segment], size: u64) -> Vec<u8> {
    let end = segments.last().map_or(0, |last| last.offset + last.length);
    // An empty part marks the end behind a hole.
    let marker = (end < size).then_some(Segment {
        offset: size,
        length: 0,
    });
    let all: Vec<_> = segments.iter().copied().chain(marker).collect();
    let mut text = format!("{}\n", all.len());
    for segment in all {
        text.push_str(&format!("{}\n{}\n", segment.offset, segment.length));
    }
    let mut map = text.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK as usize), 0);
    map
}

/// A member before its headers are written.
struct Draft {
    path: Vec<u8>,
    kind: EntryType,
    target: Vec<u8>,
    stat: Stat,
    records: Vec<u8>,
}

impl Draft {
    fn new(stat: &Stat, path: &[u8], kind: FileKind) -> Self {
        let (kind, end): (_, &[u8]) = match kind {
            FileKind::Directory if path.is_empty() => (EntryType::Directory, b"./"),
            FileKind::Directory => (EntryType::Directory, b"/"),
            FileKind::Symlink => (EntryType::Symlink, b""),
            FileKind::CharDevice => (EntryType::Char, b""),
            FileKind::BlockDevice => (EntryType::Block, b""),
            FileKind::Fifo => (EntryType::Fifo, b""),
            FileKind::File | FileKind::Socket => (EntryType::Regular, b""),
        };
        Self {
            path: [path, end].concat(),
            kind,
            target: Vec::new(),
            stat: *stat,
            records: Vec::new(),
        }
    }

    /// Turns it into another name of what `first` is.
    fn link_to(&mut self, first: &[u8]) {
        self.kind = EntryType::Link;
        self.target = first.to_vec();
    }

    /// Adds a record to the extended header.
    fn record(&mut self, key: &[u8], value: &[u8]) {
        put_record(&mut self.records, key, value);
    }

    /// The header, and the records for what it has no room for.
    fn headers(&self, size: u64) -> (Header, Vec<u8>) {
        let mut records = self.records.clone();
        let mut header = Header::new_ustar();
        header.set_entry_type(self.kind);
        let stat = &self.stat;
        header.set_mode(u32::from(stat.mode & 0o7777));
        for (key, id) in [("uid", stat.uid), ("gid", stat.gid)] {
            let stored = if id > OWNER_MAX { 0 } else { id.into() };
            match key {
                "uid" => header.set_uid(stored),
                _ => header.set_gid(stored),
            }
            if id > OWNER_MAX {
                put_record(&mut records, key.as_bytes(), id.to_string().as_bytes());
            }
        }
        if size > SIZE_MAX {
            put_record(&mut records, b"size", size.to_string().as_bytes());
        }
        header.set_size(if size > SIZE_MAX { 0 } else { size });
        let Timestamp { seconds, nanos } = stat.mtime;
        let whole = u64::try_from(seconds)
            .ok()
            .filter(|&seconds| seconds <= SIZE_MAX);
        header.set_mtime(whole.unwrap_or(0));
        if whole.is_none() || nanos != 0 {
            put_record(&mut records, b"mtime", decimal(stat.mtime).as_bytes());
        }
        if matches!(self.kind, EntryType::Char | EntryType::Block) {
            // Linux's numbers fit into the fields: 12 and 20 bits.
            let _ = header.set_device_major(stat.device.0);
            let _ = header.set_device_minor(stat.device.1);
        }
        let names = header.as_old_mut();
        for (key, name, field) in [
            (&b"path"[..], &self.path, &mut names.name),
            (&b"linkpath"[..], &self.target, &mut names.linkname),
        ] {
            put_name(field, name);
            if name.len() > NAME_MAX || !name.is_ascii() {
                put_record(&mut records, key, name);
            }
        }
        header.set_cksum();
        (header, records)
    }
}

/// Adds a record of an extended header: its own length in decimal comes first.
fn put_record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3; // blank, `=`, newline
    let mut length = rest;
    while length.to_string().len() + rest != length {
        length = length.to_string().len() + rest;
    }
    records.extend_from_slice(length.to_string().as_bytes());
    for part in [b" ", key, b"=", value, b"\n"] {
        records.extend_from_slice(part);
    }
}

/// As much of a name as there is room for.
fn put_name(field: &mut [u8; NAME_MAX], name: &[u8]) {
    for (place, &byte) in field.iter_mut().zip(name) {
        *place = byte;
    }
}

/// An access control list as text, owners and groups by number. `None` if it is not in the form
/// of `getxattr`.
fn acl_text(value: &[u8]) -> Option<String> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != 2 || !entries.len().is_multiple_of(8) {
        return None;
    }
    let mut text = String::new();
    for entry in entries.chunks_exact(8) {
        let id: u32 = fields::get(entry, 4);
        let (kind, id) = match fields::get::<u16>(entry, 0) {
            0x01 => ("user", String::new()),
            0x02 => ("user", id.to_string()),
            0x04 => ("group", String::new()),
            0x08 => ("group", id.to_string()),
            0x10 => ("mask", String::new()),
            0x20 => ("other", String::new()),
            _ => return None,
        };
        let permissions: u16 = fields::get(entry, 2);
        let letter = |bit, letter| if permissions & bit != 0 { letter } else { '-' };
        let (read, write, execute) = (letter(4, 'r'), letter(2, 'w'), letter(1, 'x'));
        text.push_str(&format!("{kind}:{id}:{read}{write}{execute}\n"));
    }
    Some(text)
}

/// Seconds as a decimal fraction, negative ones too.
fn decimal(time: Timestamp) -> String {
    let nanos = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let (whole, fraction) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let text = format!("{sign}{whole}.{fraction:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_decimal_fractions() {
        for (seconds, nanos, text) in [
            (0, 0, "0"),
            (1, 500_000_000, "1.5"),
            (-1, 0, "-1"),
            (-2, 500_000_000, "-1.5"),
            (-1, 999_999_999, "-0.000000001"),
            (100, 1, "100.000000001"),
        ] {
            assert_eq!(decimal(Timestamp { seconds, nanos }), text);
        }
    }

    #[test]
    fn records_count_their_own_length() {
        for length in 0..2000 {
            let mut records = Vec::new();
            put_record(&mut records, b"key", &vec![b'v'; length]);
            let text = String::from_utf8(records).unwrap();
            let (claimed, _) = text.split_once(' ').unwrap();
            assert_eq!(claimed.parse::<usize>().unwrap(), text.len());
        }
    }
}
