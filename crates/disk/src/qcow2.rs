//! QEMU's format (`docs/interop/qcow2.rst` of its source).
//!
//! Two levels of tables lead from a cluster of the disk to one of the file.

use crate::bytes::{Header, read};
use crate::disk::{Compression, Packed, Piece};
use crate::{Error, ReadAt, Result};

/// Bytes of a header of version 3 with all that is known of it.
const HEADER: usize = 112;

/// Sizes of clusters, as powers of two, that QEMU takes.
const CLUSTERS: std::ops::RangeInclusive<u32> = 9..=21;

/// Most bytes of the first table, as in QEMU.
const FIRST_TABLE: u64 = 32 << 20;

/// Most clusters of a disk: so many are looked at one by one.
const MOST_CLUSTERS: u64 = 1 << 28;

/// The part of an entry that is an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

const COMPRESSED: u64 = 1 << 62;
const ZEROS: u64 = 1;

/// Incompatible features. "Dirty" only concerns what counts references.
const DIRTY: u64 = 1 << 0;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL: u64 = 1 << 2;
const OTHER_COMPRESSION: u64 = 1 << 3;
const SUBCLUSTERS: u64 = 1 << 4;

/// Subclusters of a cluster, where there are any.
const PARTS: u64 = 32;

/// The tables of a disk.
#[derive(Debug)]
pub(crate) struct Qcow2 {
    size: u64,
    cluster_bits: u32,
    is_old: bool,
    has_parts: bool,
    compression: Compression,
    first: u64,
    /// Entries of the first table.
    count: u64,
    /// The second table that was used last, by its number.
    second: Option<(u64, Option<Header>)>,
}

impl Qcow2 {
    pub(crate) fn open<S: ReadAt>(source: &S) -> Result<Self> {
        let mut bytes = vec![0; HEADER];
        // An empty disk of version 2 may be shorter.
        let length = source.length().map_err(Error::Read)?;
        bytes.truncate(usize::try_from(length).unwrap_or(HEADER).min(HEADER));
        read(source, 0, &mut bytes)?;
        let header = Header(bytes);
        let version = header.be32(4);
        let is_old = match version {
            2 => true,
            3 => false,
            _ => return Err(Error::unsupported(format!("version {version} of qcow2"))),
        };
        if header.be64(8) != 0 {
            return Err(Error::unsupported(backing(source, &header)));
        }
        if header.be32(32) != 0 {
            return Err(Error::unsupported("encrypted contents"));
        }
        let features = if is_old { 0 } else { header.be64(72) };
        for (feature, what) in [
            (EXTERNAL, "its contents in another file (external data)"),
            (
                CORRUPT,
                "a mark that it is corrupt: `qemu-img check -r all` mends it",
            ),
        ] {
            if features & feature != 0 {
                return Err(Error::unsupported(what));
            }
        }
        let unknown = features & !(DIRTY | OTHER_COMPRESSION | SUBCLUSTERS);
        if unknown != 0 {
            return Err(Error::unsupported(format!(
                "unknown features ({unknown:#x})"
            )));
        }
        let kind = if features & OTHER_COMPRESSION == 0 {
            0
        } else {
            header.byte(104)
        };
        let compression = match kind {
            0 => Compression::Deflate,
            1 => Compression::Zstd,
            _ => return Err(Error::unsupported(format!("unknown compression ({kind})"))),
        };
        let cluster_bits = header.be32(20);
        if !CLUSTERS.contains(&cluster_bits) {
            return Err(Error::Damaged("the size of its clusters is impossible"));
        }
        let has_parts = features & SUBCLUSTERS != 0;
        if has_parts && cluster_bits < 14 {
            return Err(Error::Damaged("its clusters are too small for subclusters"));
        }
        let qcow2 = Self {
            size: header.be64(24),
            cluster_bits,
            is_old,
            has_parts,
            compression,
            first: header.be64(40),
            count: u64::from(header.be32(36)),
            second: None,
        };
        let clusters = qcow2.size.div_ceil(qcow2.cluster());
        if clusters > MOST_CLUSTERS {
            return Err(Error::unsupported(format!(
                "{clusters} clusters, which is too many"
            )));
        }
        let needed = clusters.div_ceil(qcow2.entries());
        if qcow2.count < needed || qcow2.count * 8 > FIRST_TABLE {
            return Err(Error::Damaged("its first table does not have its size"));
        }
        Ok(qcow2)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes of an entry of a second table.
    fn entry(&self) -> u64 {
        if self.has_parts { 16 } else { 8 }
    }

    /// Entries of a second table, which is a cluster.
    fn entries(&self) -> u64 {
        self.cluster() / self.entry()
    }

    /// Returns the bytes of a unit: a cluster, or a part of one.
    pub(crate) fn unit(&self) -> u64 {
        if self.has_parts {
            self.cluster() / PARTS
        } else {
            self.cluster()
        }
    }

    /// Returns the second table of a number; none if all of its clusters are zeros.
    fn table<S: ReadAt>(&mut self, source: &S, number: u64) -> Result<Option<&Header>> {
        if self
            .second
            .as_ref()
            .is_none_or(|(known, _)| *known != number)
        {
            if number >= self.count {
                return Err(Error::Damaged("its first table does not have its size"));
            }
            let mut entry = [0; 8];
            let at = self.first.checked_add(number * 8);
            read(
                source,
                at.ok_or(Error::Damaged("an offset is too large"))?,
                &mut entry,
            )?;
            let table = match u64::from_be_bytes(entry) & OFFSET {
                0 => None,
                at => {
                    let mut bytes = vec![0; 1 << self.cluster_bits];
                    read(source, at, &mut bytes)?;
                    Some(Header(bytes))
                }
            };
            self.second = Some((number, table));
        }
        Ok(self.second.as_ref().and_then(|(_, table)| table.as_ref()))
    }

    pub(crate) fn locate<S: ReadAt>(&mut self, source: &S, unit: u64) -> Result<Piece> {
        let parts = if self.has_parts { PARTS } else { 1 };
        let (cluster, part) = (unit / parts, unit % parts);
        let (entries, size) = (self.entries(), self.entry());
        let (is_old, has_parts, bits) = (self.is_old, self.has_parts, self.cluster_bits);
        let (compression, unit) = (self.compression, self.unit());
        let Some(table) = self.table(source, cluster / entries)? else {
            return Ok(Piece::Zeros);
        };
        let at = usize::try_from(cluster % entries * size).unwrap_or_default();
        let entry = table.be64(at);
        if entry & COMPRESSED != 0 {
            // The length in sectors is in the bits above the offset.
            let width = 62 - (bits - 8);
            let offset = entry & ((1 << width) - 1);
            let sectors = (entry & !(3 << 62)) >> width;
            return Ok(Piece::Packed(Packed {
                offset,
                length: (sectors + 1) * crate::SECTOR - offset % crate::SECTOR,
                compression,
                unpacked: 1 << bits,
                skip: part * unit,
            }));
        }
        let offset = entry & OFFSET;
        if has_parts {
            let parts = table.be64(at + 8);
            let (is_there, is_zeros) = (parts >> part & 1, parts >> (PARTS + part) & 1);
            return match (is_there, is_zeros) {
                (1, 1) => Err(Error::Damaged("a subcluster is and is not there")),
                (1, _) => Ok(Piece::Plain(offset + part * unit)),
                _ => Ok(Piece::Zeros),
            };
        }
        let is_zeros = entry & ZEROS != 0 && !is_old;
        Ok(if is_zeros || offset == 0 {
            Piece::Zeros
        } else {
            Piece::Plain(offset)
        })
    }

    /// Skips second tables that are not there.
    pub(crate) fn next_data<S: ReadAt>(&mut self, source: &S, offset: u64) -> Result<u64> {
        let of_table = self.entries() * self.cluster();
        let mut at = offset;
        while at < self.size && self.table(source, at / of_table)?.is_none() {
            at = (at / of_table + 1) * of_table;
        }
        Ok(at)
    }
}

/// Names the backing file.
fn backing<S: ReadAt>(source: &S, header: &Header) -> String {
    let length = header.be32(16).min(1023) as usize;
    let mut name = vec![0; length];
    match source.read_at(header.be64(8), &mut name) {
        Ok(()) => format!("a backing file, {}", name.escape_ascii()),
        Err(_) => "a backing file".to_owned(),
    }
}
