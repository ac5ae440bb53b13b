//! Archives: what their members say of files, and a writer of them (POSIX `pax`).
//!
//! Sources: POSIX.1-2017 `pax`, and the GNU tar manual, "Storing Sparse Files", format 1.0.
//! Extended attributes are in `SCHILY.xattr.` records, as star, GNU tar and Go have them. Those
//! that such a record can't carry are in `LIBARCHIVE.xattr.` records, as libarchive has them
//! (`archive_write_set_format_pax.c`): a record's key ends at the first `=`, and POSIX has an
//! empty value take a record back, which some readers (Go's `archive/tar`) stick to.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use tar::{EntryType, Header};

use crate::format::fields;
use crate::{Owner, Segment, Timestamp};

/// Bytes of a block of an archive.
const BLOCK: u64 = 512;
/// Bytes of contents written at once.
const PIECE: usize = 1 << 20;
/// Bytes of a name and of a link's target in a header.
const NAME_MAX: usize = 100;
/// Largest numbers of an owner and of a size in a header.
const OWNER_MAX: u32 = 0o7_777_777;
const SIZE_MAX: u64 = 0o77_777_777_777;

/// What a member is.
#[derive(Debug, Clone, Copy)]
pub enum Kind<'m> {
    /// A file of this many bytes. If parts are named, only those have contents, one after the
    /// other; the rest are holes. They are in order, disjoint and within the file.
    File {
        /// Bytes, holes included.
        size: u64,
        /// The parts with contents.
        segments: Option<&'m [Segment]>,
    },
    /// Another name for the file at this path.
    HardLink(&'m [u8]),
    /// A symbolic link with this target.
    Symlink(&'m [u8]),
    /// A directory. One that exists gets the attributes.
    Directory,
    /// A character device with major and minor number.
    CharDevice(u32, u32),
    /// A block device with major and minor number.
    BlockDevice(u32, u32),
    /// A FIFO.
    Fifo,
}

/// A member of an archive.
#[derive(Debug, Clone)]
pub struct Member<'m> {
    /// Its path: any bytes but NUL. A directory's has no slash at its end; an empty one is the
    /// archive's root.
    pub path: &'m [u8],
    /// What it is.
    pub kind: Kind<'m>,
    /// Permissions and owner.
    pub owner: Owner,
    /// Last change of the contents; also becomes that of the last access.
    pub mtime: Timestamp,
    /// Extended attributes by full name, access control lists in `setxattr`'s form.
    pub xattrs: &'m [(&'m [u8], &'m [u8])],
}

/// Writes an archive, member by member.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
}

impl<W: Write> Writer<W> {
    /// An archive without members, which `output` gets in pieces of any size.
    pub fn new(output: W) -> Self {
        Self { output }
    }

    /// Adds a member without contents: any but a file of more than 0 bytes.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn add(&mut self, member: &Member<'_>) -> io::Result<()> {
        self.headers(member, &[], 0)
    }

    /// Adds a file. `read` fills a buffer with its bytes from an offset on.
    ///
    /// # Errors
    ///
    /// Those of the output and of `read`; the archive is not whole then.
    pub fn add_file<E: From<io::Error>>(
        &mut self,
        member: &Member<'_>,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Kind::File { size, segments } = member.kind else {
            return Ok(self.add(member)?);
        };
        let whole = [Segment {
            offset: 0,
            length: size,
        }];
        let segments = segments.unwrap_or(&whole);
        let held: u64 = segments.iter().map(|segment| segment.length).sum();
        let map = match held < size {
            true => sparse_map(segments, size),
            false => Vec::new(),
        };
        let stored = map.len() as u64 + held;
        self.headers(member, &map, stored)?;
        let mut buffer = vec![0; PIECE.min(usize::try_from(held).unwrap_or(PIECE))];
        for segment in segments {
            let mut at = segment.offset;
            let end = segment.offset.saturating_add(segment.length);
            while at < end {
                let count = (end - at).min(buffer.len() as u64) as usize;
                let piece = buffer.get_mut(..count).unwrap_or_default();
                read(at, piece)?;
                self.output.write_all(piece)?;
                at += count as u64;
            }
        }
        Ok(self.pad(stored)?)
    }

    /// Ends the archive, and gives back its output.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        // Two blocks of zeros.
        self.output.write_all(&[0; 2 * BLOCK as usize])?;
        self.output.flush()?;
        Ok(self.output)
    }

    /// Writes the headers of a member with `size` bytes of contents, and the map at their start.
    fn headers(&mut self, member: &Member<'_>, map: &[u8], size: u64) -> io::Result<()> {
        let (header, records) = headers(member, !map.is_empty(), size);
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
        self.output.write_all(map)
    }

    /// Zeros from `size` bytes to the end of their last block.
    fn pad(&mut self, size: u64) -> io::Result<()> {
        let padding = (size.wrapping_neg() % BLOCK) as usize;
        self.output.write_all(&vec![0; padding])
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
    let count = segments.len() + usize::from(marker.is_some());
    let mut text = format!("{count}\n");
    for segment in segments.iter().chain(&marker) {
        text.push_str(&format!("{}\n{}\n", segment.offset, segment.length));
    }
    let mut map = text.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK as usize), 0);
    map
}

/// A member's header, and the records for what that has no room for.
fn headers(member: &Member<'_>, is_sparse: bool, size: u64) -> (Header, Vec<u8>) {
    let (kind, end): (_, &[u8]) = match member.kind {
        Kind::File { .. } => (EntryType::Regular, b""),
        Kind::HardLink(_) => (EntryType::Link, b""),
        Kind::Symlink(_) => (EntryType::Symlink, b""),
        Kind::CharDevice(..) => (EntryType::Char, b""),
        Kind::BlockDevice(..) => (EntryType::Block, b""),
        Kind::Fifo => (EntryType::Fifo, b""),
        Kind::Directory if member.path.is_empty() => (EntryType::Directory, b"./"),
        Kind::Directory => (EntryType::Directory, b"/"),
    };
    let mut path = [member.path, end].concat();
    let target = match member.kind {
        Kind::HardLink(target) | Kind::Symlink(target) => target,
        _ => b"",
    };
    let mut records = Vec::new();
    for (name, value) in member.xattrs {
        put_xattr(&mut records, name, value);
    }
    if let (true, Kind::File { size, .. }) = (is_sparse, member.kind) {
        put_record(&mut records, b"GNU.sparse.major", b"1");
        put_record(&mut records, b"GNU.sparse.minor", b"0");
        put_record(&mut records, b"GNU.sparse.name", &path);
        put_record(
            &mut records,
            b"GNU.sparse.realsize",
            size.to_string().as_bytes(),
        );
        // What programs that don't know the format are to unpack.
        path = [b"GNUSparseFile.0/", &*path].concat();
    }
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(u32::from(member.owner.permissions & 0o7777));
    for (key, id) in [("uid", member.owner.uid), ("gid", member.owner.gid)] {
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
    let Timestamp { seconds, nanos } = member.mtime;
    let whole = u64::try_from(seconds)
        .ok()
        .filter(|&seconds| seconds <= SIZE_MAX);
    header.set_mtime(whole.unwrap_or(0));
    if whole.is_none() || nanos != 0 {
        put_record(&mut records, b"mtime", decimal(member.mtime).as_bytes());
    }
    if let Kind::CharDevice(major, minor) | Kind::BlockDevice(major, minor) = member.kind {
        // Linux's numbers fit into the fields: 12 and 20 bits.
        let _ = header.set_device_major(major);
        let _ = header.set_device_minor(minor);
    }
    let names = header.as_old_mut();
    for (key, name, field) in [
        (&b"path"[..], &*path, &mut names.name),
        (&b"linkpath"[..], target, &mut names.linkname),
    ] {
        put_name(field, name);
        if name.len() > NAME_MAX || !name.is_ascii() {
            put_record(&mut records, key, name);
        }
    }
    header.set_cksum();
    (header, records)
}

/// Adds the records of an extended attribute.
fn put_xattr(records: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let is_plain = !name.contains(&b'=');
    if !is_plain || value.is_empty() {
        let key = [b"LIBARCHIVE.xattr.", &*url_encoded(name)].concat();
        put_record(records, &key, STANDARD_NO_PAD.encode(value).as_bytes());
    }
    if is_plain {
        put_record(records, &[b"SCHILY.xattr.", name].concat(), value);
    }
    // GNU tar takes access control lists as text only.
    let key: &[u8] = match name {
        b"system.posix_acl_access" => b"SCHILY.acl.access",
        b"system.posix_acl_default" => b"SCHILY.acl.default",
        _ => return,
    };
    if let Some(text) = acl_text(value) {
        put_record(records, key, text.as_bytes());
    }
}

/// A name in printable ASCII without `=`, as libarchive's `url_encode` has it.
fn url_encoded(name: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(name.len());
    for &byte in name {
        match byte {
            b'%' | b'=' | ..33 | 127.. => {
                encoded.extend_from_slice(format!("%{byte:02X}").as_bytes());
            }
            _ => encoded.push(byte),
        }
    }
    encoded
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
    fn names_are_encoded_as_libarchive_does_it() {
        assert_eq!(url_encoded(b"user.a=b c%\xff"), b"user.a%3Db%20c%25%FF");
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
