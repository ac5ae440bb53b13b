//! A disk in a file, whatever format the file has.

use std::io::Read;

use crate::bytes::read;
use crate::qcow2::Qcow2;
use crate::vmdk::Vmdk;
use crate::{Error, LARGEST, ReadAt, Result};

/// The format of a file with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The disk's bytes, one after the other.
    Raw,
    /// QEMU's.
    Qcow2,
    /// VMware's, in one file.
    Vmdk,
}

impl Format {
    /// Returns the format that a file's first bytes tell.
    pub fn of(source: &impl ReadAt) -> Self {
        let mut head = [0; 4];
        match source.read_at(0, &mut head).map(|()| &head) {
            Ok(b"QFI\xfb") => Self::Qcow2,
            Ok(b"KDMV") => Self::Vmdk,
            _ => Self::Raw,
        }
    }
}

/// Where a unit of a disk's bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Nowhere: it is all zeros.
    Zeros,
    /// At an offset of the file.
    Plain(u64),
    /// Among others in compressed bytes of the file.
    Packed(Packed),
}

/// Compressed bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) offset: u64,
    /// Their number, or somewhat more.
    pub(crate) length: u64,
    pub(crate) compression: Compression,
    /// How many bytes they are unpacked, and which of them is the unit's first.
    pub(crate) unpacked: u64,
    pub(crate) skip: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    /// Without a head, as in qcow2.
    Deflate,
    Zlib,
    Zstd,
}

#[derive(Debug)]
enum Map {
    Raw,
    Qcow2(Qcow2),
    Vmdk(Vmdk),
}

/// A disk in a file.
#[derive(Debug)]
pub struct Disk<S> {
    source: S,
    map: Map,
    size: u64,
    /// What was unpacked last, and its place in the file.
    unpacked: Option<(u64, Vec<u8>)>,
}

impl<S: ReadAt> Disk<S> {
    /// Opens a disk, whose format the file's first bytes tell.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(source: S) -> Result<Self> {
        let length = source.length().map_err(Error::Read)?;
        let (map, size) = match Format::of(&source) {
            Format::Qcow2 => {
                let qcow2 = Qcow2::open(&source)?;
                let size = qcow2.size();
                (Map::Qcow2(qcow2), size)
            }
            Format::Vmdk => {
                let vmdk = Vmdk::open(&source, length)?;
                let size = vmdk.size();
                (Map::Vmdk(vmdk), size)
            }
            Format::Raw => (Map::Raw, length),
        };
        if size > LARGEST {
            return Err(Error::unsupported(format!(
                "{size} bytes, which is too large"
            )));
        }
        Ok(Self {
            source,
            map,
            size,
            unpacked: None,
        })
    }

    /// Opens a disk whose bytes are those of the file.
    pub(crate) fn raw(source: S) -> Result<Self> {
        let size = source.length().map_err(Error::Read)?;
        Ok(Self {
            source,
            map: Map::Raw,
            size,
            unpacked: None,
        })
    }

    /// Returns the format of the file.
    pub fn format(&self) -> Format {
        match self.map {
            Map::Raw => Format::Raw,
            Map::Qcow2(_) => Format::Qcow2,
            Map::Vmdk(_) => Format::Vmdk,
        }
    }

    /// Returns the size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the length of the file in bytes.
    pub(crate) fn file_length(&self) -> Result<u64> {
        self.source.length().map_err(Error::Read)
    }

    /// Returns how many bytes from a multiple of that number on have one place in the file.
    pub(crate) fn unit(&self) -> u64 {
        match &self.map {
            Map::Raw => 1 << 20,
            Map::Qcow2(qcow2) => qcow2.unit(),
            Map::Vmdk(vmdk) => vmdk.unit(),
        }
    }

    /// Returns the offset from which on there may be other bytes than zeros, at or behind `offset`.
    pub(crate) fn next_data(&mut self, offset: u64) -> Result<u64> {
        match &mut self.map {
            Map::Raw => Ok(offset),
            Map::Qcow2(qcow2) => qcow2.next_data(&self.source, offset),
            Map::Vmdk(vmdk) => vmdk.next_data(&self.source, offset),
        }
    }

    /// Reads from an offset on. Returns whether anything was read but zeros that the file does not have.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Damaged`] behind the end of the disk.
    pub fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.size) {
            return Err(Error::Damaged("something lies behind its end"));
        }
        let mut has_data = false;
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let unit = self.unit();
            let (number, skip) = (at / unit, at % unit);
            let count = (unit - skip).min(rest.len() as u64) as usize;
            let Some((piece, behind)) = rest.split_at_mut_checked(count) else {
                break;
            };
            let place = match &mut self.map {
                Map::Raw => Piece::Plain(number * unit),
                Map::Qcow2(qcow2) => qcow2.locate(&self.source, number)?,
                Map::Vmdk(vmdk) => vmdk.locate(&self.source, number)?,
            };
            match place {
                Piece::Zeros => piece.fill(0),
                Piece::Plain(place) => {
                    let place = place.checked_add(skip);
                    let place = place.ok_or(Error::Damaged("an offset is too large"))?;
                    read(&self.source, place, piece)?;
                    has_data = true;
                }
                Piece::Packed(packed) => {
                    let unpacked = self.unpack(packed)?;
                    let start = usize::try_from(packed.skip + skip).unwrap_or(usize::MAX);
                    let found = unpacked.get(start..start.saturating_add(count));
                    let found = found.ok_or(Error::Damaged("a cluster is too short"))?;
                    piece.copy_from_slice(found);
                    has_data = true;
                }
            }
            at += count as u64;
            rest = behind;
        }
        Ok(has_data)
    }

    fn unpack(&mut self, packed: Packed) -> Result<&[u8]> {
        let is_known = matches!(&self.unpacked, Some((offset, _)) if *offset == packed.offset);
        if !is_known {
            // The last ones may end with the file.
            let length = self.source.length().map_err(Error::Read)?;
            let length = packed.length.min(length.saturating_sub(packed.offset));
            let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
            read(&self.source, packed.offset, &mut bytes)?;
            let unpacked = unpacked(&bytes, packed.compression, packed.unpacked)?;
            self.unpacked = Some((packed.offset, unpacked));
        }
        Ok(self.unpacked.as_ref().map_or(&[], |(_, bytes)| bytes))
    }
}

/// Unpacks at most `size` bytes; what follows in `bytes` is padding.
fn unpacked(bytes: &[u8], compression: Compression, size: u64) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    let read = match compression {
        Compression::Deflate => flate2::read::DeflateDecoder::new(bytes)
            .take(size)
            .read_to_end(&mut out),
        Compression::Zlib => flate2::read::ZlibDecoder::new(bytes)
            .take(size)
            .read_to_end(&mut out),
        Compression::Zstd => zstd::stream::read::Decoder::with_buffer(bytes)
            .map_err(Error::Read)?
            .single_frame()
            .take(size)
            .read_to_end(&mut out),
    };
    match read {
        Ok(_) => Ok(out),
        Err(_) => Err(Error::Damaged(
            "compressed bytes are not what they should be",
        )),
    }
}
