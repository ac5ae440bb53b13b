//! Writes archives in POSIX `pax` form.
//!
//! Sources: POSIX.1-2017 `pax`, and the GNU tar manual, "Storing Sparse Files", format 1.0.
//! Extended attributes are in `SCHILY.xattr.` records, as in star, GNU tar and Go. Those that such
//! a record can't represent are in `LIBARCHIVE.xattr.` records, as in libarchive
//! (`archive_write_set_format_pax.c`): a record's key ends at the first `=`, and in POSIX an empty
//! value cancels a record, a rule that some readers (Go's `archive/tar`) follow.

use std::io::{self, Write};

use micabox_file::{Segment, Timestamp};
use tar::{EntryType, Header};

use crate::{Kind, Member, pax, xattr};

/// Size in bytes of a block of an archive.
const BLOCK: u64 = 512;
/// Number of bytes of contents written at a time.
const PIECE: usize = 1 << 20;
/// Size in bytes of the fields for a name and a link's target in a header.
const NAME_MAX: usize = 100;
/// Largest owner ID and largest size that a header can hold.
const OWNER_MAX: u32 = 0o7_777_777;
const SIZE_MAX: u64 = 0o77_777_777_777;

/// Writes an archive, member by member. The same members produce the same bytes.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
}

impl<W: Write> Writer<W> {
    /// Starts an archive without members; it is written to `output` in pieces of any size.
    pub fn new(output: W) -> Self {
        Self { output }
    }

    /// Adds a member without contents: any member except a file of more than 0 bytes.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn add(&mut self, member: &Member) -> io::Result<()> {
        self.headers(member, &[], 0)
    }

    /// Adds a file. `read` fills a buffer with the file's bytes from an offset on.
    ///
    /// # Errors
    ///
    /// Those of the output and of `read`; the archive is incomplete then.
    pub fn add_file<E: From<io::Error>>(
        &mut self,
        member: &Member,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Kind::File { size, segments } = &member.kind else {
            return Ok(self.add(member)?);
        };
        let (size, whole) = (*size, [Segment::whole(*size)]);
        let segments = segments.as_deref().unwrap_or(&whole);
        let held: u64 = segments.iter().map(|segment| segment.length).sum();
        let map = if held < size {
            sparse_map(segments, size)
        } else {
            Vec::new()
        };
        let stored = map.len() as u64 + held;
        self.headers(member, &map, stored)?;
        let mut buffer = vec![0; PIECE.min(usize::try_from(held).unwrap_or(PIECE))];
        for segment in segments {
            let mut at = segment.offset;
            let end = segment.end();
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

    /// Ends the archive, and returns its output.
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

    /// Writes the headers of a member with `size` bytes of contents, and the map that starts the
    /// contents.
    fn headers(&mut self, member: &Member, map: &[u8], size: u64) -> io::Result<()> {
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

    /// Writes zeros from `size` bytes to the end of their last block.
    fn pad(&mut self, size: u64) -> io::Result<()> {
        let padding = (size.wrapping_neg() % BLOCK) as usize;
        self.output.write_all(&vec![0; padding])
    }
}

/// Formats the map before a sparse file's contents: decimal numbers, one per line, in whole blocks.
fn sparse_map(segments: &[Segment], size: u64) -> Vec<u8> {
    let end = segments.last().map_or(0, Segment::end);
    // An empty segment marks the end after a hole.
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

/// Builds a member's header, and the records for what does not fit in the header.
fn headers(member: &Member, is_sparse: bool, size: u64) -> (Header, Vec<u8>) {
    let (kind, end): (_, &[u8]) = match &member.kind {
        Kind::File { .. } => (EntryType::Regular, b""),
        Kind::HardLink(_) => (EntryType::Link, b""),
        Kind::Symlink(_) => (EntryType::Symlink, b""),
        Kind::CharDevice(..) => (EntryType::Char, b""),
        Kind::BlockDevice(..) => (EntryType::Block, b""),
        Kind::Fifo => (EntryType::Fifo, b""),
        Kind::Directory if member.path.is_empty() => (EntryType::Directory, b"./"),
        Kind::Directory => (EntryType::Directory, b"/"),
    };
    let mut path = [&member.path, end].concat();
    let attributes = &member.attributes;
    let mut records = Vec::new();
    for (name, value) in &attributes.xattrs {
        xattr::put(&mut records, name, value);
    }
    if let (true, Kind::File { size, .. }) = (is_sparse, &member.kind) {
        pax::put(&mut records, b"GNU.sparse.major", b"1");
        pax::put(&mut records, b"GNU.sparse.minor", b"0");
        pax::put(&mut records, b"GNU.sparse.name", &path);
        pax::put(
            &mut records,
            b"GNU.sparse.realsize",
            size.to_string().as_bytes(),
        );
        // The name for programs that don't know the format.
        path = [b"GNUSparseFile.0/", &*path].concat();
    }
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(u32::from(attributes.mode & 0o7777));
    for (key, id) in [("uid", attributes.uid), ("gid", attributes.gid)] {
        let stored = if id > OWNER_MAX { 0 } else { id.into() };
        match key {
            "uid" => header.set_uid(stored),
            _ => header.set_gid(stored),
        }
        if id > OWNER_MAX {
            pax::put(&mut records, key.as_bytes(), id.to_string().as_bytes());
        }
    }
    if size > SIZE_MAX {
        pax::put(&mut records, b"size", size.to_string().as_bytes());
    }
    header.set_size(if size > SIZE_MAX { 0 } else { size });
    let Timestamp { seconds, nanos } = attributes.mtime;
    let whole = u64::try_from(seconds)
        .ok()
        .filter(|&seconds| seconds <= SIZE_MAX);
    header.set_mtime(whole.unwrap_or(0));
    if whole.is_none() || nanos != 0 {
        pax::put(
            &mut records,
            b"mtime",
            pax::seconds(attributes.mtime).as_bytes(),
        );
    }
    if let Kind::CharDevice(major, minor) | Kind::BlockDevice(major, minor) = member.kind {
        // Linux's numbers fit in the fields: 12 and 20 bits.
        let _ = header.set_device_major(major);
        let _ = header.set_device_minor(minor);
    }
    let names = header.as_old_mut();
    for (key, name, field) in [
        (&b"path"[..], &*path, &mut names.name),
        (&b"linkpath"[..], member.kind.target(), &mut names.linkname),
    ] {
        put_name(field, name);
        if name.len() > NAME_MAX || !name.is_ascii() {
            pax::put(&mut records, key, name);
        }
    }
    header.set_cksum();
    (header, records)
}

/// Copies as much of a name as fits.
fn put_name(field: &mut [u8; NAME_MAX], name: &[u8]) {
    for (place, &byte) in field.iter_mut().zip(name) {
        *place = byte;
    }
}
