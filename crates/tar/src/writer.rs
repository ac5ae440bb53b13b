//! Writes archives in POSIX `pax` form.
//!
//! Sources: POSIX.1-2017 `pax`, and the GNU tar manual, "Storing Sparse Files", format 1.0.
//! Extended attributes are in `SCHILY.xattr.` records, as in star, GNU tar and Go. Those that such
//! a record can't represent are in `LIBARCHIVE.xattr.` records, as in libarchive
//! (`archive_write_set_format_pax.c`): a record's key ends at the first `=`, and in POSIX an empty
//! value cancels a record, a rule that some readers (Go's `archive/tar`) follow.

use std::io::{self, Write};

use micabox_file::{Segment, Timestamp};

use crate::ustar::{self, Ustar};
use crate::{Kind, Member, pax, xattr};

/// Size in bytes of a block of an archive.
const BLOCK: u64 = 512;
/// Number of bytes of contents written at a time.
const PIECE: usize = 1 << 20;
/// Most bytes of a name, and of a link's target, in a header.
const NAME_MAX: usize = ustar::NAME.end;
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
            let mut extended = Ustar::new(b'x');
            extended.set_text(ustar::NAME, b"PaxHeader");
            extended.set_number(ustar::MODE, 0o644);
            extended.set_number(ustar::UID, 0);
            extended.set_number(ustar::GID, 0);
            extended.set_number(ustar::MTIME, 0);
            extended.set_number(ustar::SIZE, records.len() as u64);
            self.output.write_all(&extended.finish())?;
            self.output.write_all(&records)?;
            self.pad(records.len() as u64)?;
        }
        self.output.write_all(&header.finish())?;
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
fn headers(member: &Member, is_sparse: bool, size: u64) -> (Ustar, Vec<u8>) {
    let (typeflag, end): (_, &[u8]) = match &member.kind {
        Kind::File { .. } => (b'0', b""),
        Kind::HardLink(_) => (b'1', b""),
        Kind::Symlink(_) => (b'2', b""),
        Kind::CharDevice(..) => (b'3', b""),
        Kind::BlockDevice(..) => (b'4', b""),
        Kind::Fifo => (b'6', b""),
        Kind::Directory if member.path.is_empty() => (b'5', b"./"),
        Kind::Directory => (b'5', b"/"),
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
    let mut header = Ustar::new(typeflag);
    header.set_number(ustar::MODE, u64::from(attributes.mode & 0o7777));
    for (key, field, id) in [
        ("uid", ustar::UID, attributes.uid),
        ("gid", ustar::GID, attributes.gid),
    ] {
        header.set_number(field, if id > OWNER_MAX { 0 } else { id.into() });
        if id > OWNER_MAX {
            pax::put(&mut records, key.as_bytes(), id.to_string().as_bytes());
        }
    }
    if size > SIZE_MAX {
        pax::put(&mut records, b"size", size.to_string().as_bytes());
    }
    header.set_number(ustar::SIZE, if size > SIZE_MAX { 0 } else { size });
    let Timestamp { seconds, nanos } = attributes.mtime;
    let whole = u64::try_from(seconds)
        .ok()
        .filter(|&seconds| seconds <= SIZE_MAX);
    header.set_number(ustar::MTIME, whole.unwrap_or(0));
    if whole.is_none() || nanos != 0 {
        pax::put(
            &mut records,
            b"mtime",
            pax::seconds(attributes.mtime).as_bytes(),
        );
    }
    if let Kind::CharDevice(major, minor) | Kind::BlockDevice(major, minor) = member.kind {
        // Linux's numbers fit in the fields: 12 and 20 bits.
        header.set_number(ustar::MAJOR, major.into());
        header.set_number(ustar::MINOR, minor.into());
    }
    for (key, name, field) in [
        (&b"path"[..], &*path, ustar::NAME),
        (b"linkpath", member.kind.target(), ustar::TARGET),
    ] {
        header.set_text(field, name);
        if name.len() > NAME_MAX || !name.is_ascii() {
            pax::put(&mut records, key, name);
        }
    }
    (header, records)
}
