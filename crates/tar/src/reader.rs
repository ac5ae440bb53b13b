//! Reads an archive member by member.

use std::io::{self, BufRead, Read};

use micabox_file::{Segment, Timestamp};

use crate::header::{self, BLOCK, Header};
use crate::sparse::{self, Described, checked};
use crate::{Attributes, Error, Kind, Limit, Limits, Member, Records, pax};

/// Reads an archive from a stream in one pass.
pub struct Reader<R> {
    input: R,
    /// Number of bytes taken from `input`.
    offset: u64,
    /// Number of unread bytes of the current member's contents.
    contents: u64,
    /// Number of padding bytes between the contents and the next block.
    padding: u64,
    /// The name in the last header, used in messages.
    name: Vec<u8>,
    /// The records of the current member alone.
    records: Records,
    limits: Limits,
}

/// The content of the extension headers before a member.
#[derive(Default)]
struct Extensions {
    records: Option<Records>,
    long_path: Option<Vec<u8>>,
    long_target: Option<Vec<u8>>,
    /// Total size in bytes.
    size: u64,
}

impl Extensions {
    fn is_empty(&self) -> bool {
        self.records.is_none() && self.long_path.is_none() && self.long_target.is_none()
    }
}

impl<R: BufRead> Reader<R> {
    /// Creates a reader of the uncompressed archive in `input`.
    pub fn new(input: R, limits: Limits) -> Self {
        Self {
            input,
            offset: 0,
            contents: 0,
            padding: 0,
            name: Vec::new(),
            records: Records::default(),
            limits,
        }
    }

    /// Returns the reader's position in the archive, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the name of the member that was read last, or whose header caused an error.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the underlying stream. Reading from it directly would confuse the reader.
    pub fn input(&mut self) -> &mut R {
        &mut self.input
    }

    /// Returns the underlying stream, to read what follows the archive's end.
    pub fn into_inner(self) -> R {
        self.input
    }

    /// Returns the next member, whose contents [`Self::body`] reads, and skips the unread contents
    /// of the previous one. `None` after the archive's end.
    ///
    /// The member's extended attributes are in [`Self::take_records`].
    ///
    /// # Errors
    ///
    /// [`Error`]; reading can't continue after it.
    pub fn next_member(&mut self) -> Result<Option<Member>, Error> {
        self.skip(self.contents, "a file's contents")?;
        self.skip(self.padding, "a file's padding")?;
        (self.contents, self.padding) = (0, 0);

        let mut extensions = Extensions::default();
        let mut block = [0; BLOCK];
        loop {
            let more = self.read_block(&mut block)?;
            if !more || is_zero(&block) {
                if !extensions.is_empty() {
                    return Err(Error::Truncated(
                        "a member: only its extended header is there",
                    ));
                }
                // Both forms of the end are valid: the end of the input, or two blocks of zeros.
                // Many archives were cut after the first of these blocks.
                if more && self.read_block(&mut block)? && !is_zero(&block) {
                    return Err(Error::LoneZeroBlock);
                }
                return Ok(None);
            }
            let header = Header::parse(&block)?;
            match header.typeflag() {
                b'x' | b'X' => {
                    let bytes = self.read_extension(&header, &mut extensions)?;
                    extensions.records = Some(Records::parse(bytes)?);
                }
                b'L' => {
                    let bytes = self.read_extension(&header, &mut extensions)?;
                    extensions.long_path = Some(header::text(&bytes).to_vec());
                }
                b'K' => {
                    let bytes = self.read_extension(&header, &mut extensions)?;
                    extensions.long_target = Some(header::text(&bytes).to_vec());
                }
                b'g' => {
                    let size = header.size()?;
                    self.skip(size, "a global header")?;
                    self.skip(padding(size), "a global header")?;
                }
                _ => return self.member(&header, extensions).map(Some),
            }
        }
    }

    /// Returns the contents of the current member: the stored bytes, without holes.
    pub fn body(&mut self) -> Body<'_, R> {
        Body(self)
    }

    /// Returns the records of the current member; empty if they were already taken.
    pub fn take_records(&mut self) -> Records {
        std::mem::take(&mut self.records)
    }

    fn member(&mut self, header: &Header<'_>, extensions: Extensions) -> Result<Member, Error> {
        let records = extensions.records.unwrap_or_default();
        let record = |key: &[u8]| records.get(key).map(<[u8]>::to_vec);

        // As in Go's archive/tar: GNU's long names take precedence over PAX, and a sparse file's
        // own name over the artificial one that is meant for old readers.
        let path = extensions
            .long_path
            .or_else(|| record(b"GNU.sparse.name"))
            .or_else(|| record(b"path"))
            .unwrap_or_else(|| header.path());
        self.name.clone_from(&path);
        let target = extensions
            .long_target
            .or_else(|| record(b"linkpath"))
            .unwrap_or_else(|| header.target().to_vec());
        for (text, what) in [(&path, "name"), (&target, "link target")] {
            if text.contains(&0) {
                return Err(Error::Nul(what));
            }
            if text.len() as u64 > self.limits.path_length {
                return Err(Error::Limit(Limit::PathLength));
            }
        }

        // Some archivers store the target's size in links, which have no contents.
        let kind = match header.typeflag() {
            // Before POSIX, directories had no type. A member that is a directory only by its name
            // may have contents, which are ignored.
            0 | b'0' | b'7' if path.ends_with(b"/") => {
                self.set_contents(stored_size(header, &records)?);
                Kind::Directory
            }
            0 | b'0' | b'7' => self.file(header, &records)?,
            b'S' => self.old_sparse(header, &records)?,
            b'1' => Kind::HardLink(target),
            b'2' => Kind::Symlink(target),
            b'3' => {
                let (major, minor) = header.device()?;
                Kind::CharDevice(major, minor)
            }
            b'4' => {
                let (major, minor) = header.device()?;
                Kind::BlockDevice(major, minor)
            }
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => return Err(Error::Type(other)),
        };
        let attributes = Attributes {
            mode: header.mode()?,
            uid: id(records.number("uid")?, || header.uid(), "owner")?,
            gid: id(records.number("gid")?, || header.gid(), "group")?,
            mtime: match records.time("mtime")? {
                Some(time) => time,
                None => Timestamp {
                    seconds: header.mtime()?,
                    nanos: 0,
                },
            },
            xattrs: Vec::new(),
        };
        self.records = records;
        Ok(Member {
            path,
            kind,
            attributes,
        })
    }

    /// Describes a regular file; its records say whether it is sparse.
    fn file(&mut self, header: &Header<'_>, records: &Records) -> Result<Kind, Error> {
        let stored = stored_size(header, records)?;
        self.set_contents(stored);
        let (segments, size) = match sparse::described(records, self.limits.sparse_segments)? {
            None => return Ok(Kind::file(stored)),
            Some(Described::Map { segments, size }) => (checked(segments, size, stored)?, size),
            Some(Described::InData { size }) => {
                let segments = self.sparse_map_in_data()?;
                (checked(segments, size, self.contents)?, size)
            }
        };
        Ok(Kind::File {
            size,
            segments: Some(segments),
        })
    }

    /// Reads a map of format 1.0: decimal numbers, one per line, the number of segments first,
    /// padded to a whole block.
    fn sparse_map_in_data(&mut self) -> Result<Vec<Segment>, Error> {
        let most = self.limits.sparse_segments;
        let mut block = [0; BLOCK];
        let mut at = BLOCK;
        let mut number = || -> Result<u64, Error> {
            let mut digits = Vec::new();
            loop {
                if at == BLOCK {
                    if self.contents < BLOCK as u64 {
                        return Err(Error::Sparse("it is cut short"));
                    }
                    self.read_contents(&mut block)?;
                    at = 0;
                }
                let byte = block[at];
                at += 1;
                if byte == b'\n' {
                    return pax::decimal(&digits)
                        .ok_or(Error::Sparse("a position is not a number"));
                }
                digits.push(byte);
                if digits.len() > 20 {
                    return Err(Error::Sparse("a position is not a number"));
                }
            }
        };
        let count = number()?;
        if count > most {
            return Err(Error::Limit(Limit::SparseSegments));
        }
        let mut segments = Vec::new();
        for _ in 0..count {
            segments.push(Segment {
                offset: number()?,
                length: number()?,
            });
        }
        Ok(segments)
    }

    /// Describes a file of GNU's old sparse type: segments in the header and in blocks after it.
    fn old_sparse(&mut self, header: &Header<'_>, records: &Records) -> Result<Kind, Error> {
        if !header.is_gnu() {
            return Err(Error::Sparse("only GNU's own header format has one"));
        }
        let stored = stored_size(header, records)?;
        let (mut segments, mut more, size) = header.sparse()?;
        let mut block = [0; BLOCK];
        while more {
            if !self.read_block(&mut block)? {
                return Err(Error::Truncated("the map of a sparse file"));
            }
            segments.extend(header::sparse_segments(&block[..504])?);
            more = block[504] != 0;
            if segments.len() as u64 > self.limits.sparse_segments {
                return Err(Error::Limit(Limit::SparseSegments));
            }
        }
        self.set_contents(stored);
        Ok(Kind::File {
            size,
            segments: Some(checked(segments, size, stored)?),
        })
    }

    fn set_contents(&mut self, size: u64) {
        self.contents = size;
        self.padding = padding(size);
    }

    /// Reads the whole contents of an extension header.
    fn read_extension(
        &mut self,
        header: &Header<'_>,
        extensions: &mut Extensions,
    ) -> Result<Vec<u8>, Error> {
        let size = header.size()?;
        extensions.size = extensions.size.saturating_add(size);
        if extensions.size > self.limits.header_size {
            return Err(Error::Limit(Limit::HeaderSize));
        }
        // Grows with the received bytes, not with the size in the header.
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let available = self.fill("an extended header")?;
            let count = available.len().min((size - bytes.len() as u64) as usize);
            bytes.extend_from_slice(&available[..count]);
            self.consume(count);
        }
        self.skip(padding(size), "an extended header")?;
        Ok(bytes)
    }

    /// Fills `block` from the current member's contents, which must have that many bytes left.
    fn read_contents(&mut self, block: &mut [u8; BLOCK]) -> Result<(), Error> {
        self.contents -= BLOCK as u64;
        if self.read_block(block)? {
            Ok(())
        } else {
            Err(Error::Truncated("a file's contents"))
        }
    }

    /// Fills `block`; returns `false` if the input ended before its first byte.
    fn read_block(&mut self, block: &mut [u8; BLOCK]) -> Result<bool, Error> {
        let mut filled = 0;
        while filled < BLOCK {
            let available = self.fill_or_end()?;
            if available.is_empty() {
                return match filled {
                    0 => Ok(false),
                    _ => Err(Error::Truncated("a header block")),
                };
            }
            let count = available.len().min(BLOCK - filled);
            block[filled..filled + count].copy_from_slice(&available[..count]);
            filled += count;
            self.consume(count);
        }
        Ok(true)
    }

    fn skip(&mut self, mut count: u64, what: &'static str) -> Result<(), Error> {
        while count > 0 {
            let now = (self.fill(what)?.len() as u64).min(count);
            self.consume(now as usize);
            count -= now;
        }
        Ok(())
    }

    /// Returns some of the next bytes. The end of the input is an error; `what` names what is
    /// missing.
    fn fill(&mut self, what: &'static str) -> Result<&[u8], Error> {
        let available = self.fill_or_end()?;
        if available.is_empty() {
            Err(Error::Truncated(what))
        } else {
            Ok(available)
        }
    }

    fn fill_or_end(&mut self) -> Result<&[u8], Error> {
        Ok(self.input.fill_buf()?)
    }

    fn consume(&mut self, count: usize) {
        self.input.consume(count);
        self.offset += count as u64;
    }
}

/// The stored bytes of one member.
pub struct Body<'a, R>(&'a mut Reader<R>);

impl<R: BufRead> Read for Body<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.contents == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let available = self.0.input.fill_buf()?;
        let count = available.len().min(buffer.len());
        let count = (count as u64).min(self.0.contents) as usize;
        buffer[..count].copy_from_slice(&available[..count]);
        self.0.contents -= count as u64;
        self.0.consume(count);
        Ok(count)
    }
}

/// Returns the size of a member's contents in the archive.
fn stored_size(header: &Header<'_>, records: &Records) -> Result<u64, Error> {
    match records.number("size")? {
        Some(size) => Ok(size),
        None => header.size(),
    }
}

/// Returns the ID of an owner or group: the record's if there is one. -1 is invalid: the kernel
/// reserves it for "don't change".
fn id(
    record: Option<u64>,
    header: impl FnOnce() -> Result<i64, Error>,
    what: &'static str,
) -> Result<u32, Error> {
    let id = match record {
        Some(id) => u32::try_from(id).ok(),
        None => u32::try_from(header()?).ok(),
    };
    id.filter(|&id| id != u32::MAX).ok_or(Error::Number(what))
}

/// Returns the distance from `size` bytes to the end of their last block.
fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

fn is_zero(block: &[u8; BLOCK]) -> bool {
    block.iter().all(|&byte| byte == 0)
}
