//! VMware's format with one file ("VMware Virtual Disk Format 5.0").

use crate::bytes::{Header, read};
use crate::disk::{Compression, Packed, Piece};
use crate::{Error, LARGEST, ReadAt, Result, SECTOR};

/// In place of the directory's offset: the header at the end has it.
const AT_END: u64 = u64::MAX;

/// Longest description, in bytes, that is read.
const LONGEST_DESCRIPTION: u64 = 64 << 10;

/// Entries of a table, and sectors of a grain, that are taken.
const ENTRIES: std::ops::RangeInclusive<u64> = 1..=4096;
const GRAINS: std::ops::RangeInclusive<u64> = 8..=4096;

/// Most grains of a disk: so many are looked at one by one.
const MOST_GRAINS: u64 = 1 << 28;

const HAS_ZERO_GRAINS: u32 = 1 << 2;
const IS_COMPRESSED: u32 = 1 << 16;

/// Bytes in front of a compressed grain: its place on the disk, and its length.
const MARKER: u64 = 12;

/// The tables of a disk.
#[derive(Debug)]
pub(crate) struct Vmdk {
    /// In bytes.
    size: u64,
    grain: u64,
    /// Grains of a table.
    entries: u64,
    /// Offset of the directory of tables.
    directory: u64,
    has_zero_grains: bool,
    is_compressed: bool,
    /// The table that was used last, by its number.
    table: Option<(u64, Option<Header>)>,
}

impl Vmdk {
    pub(crate) fn open<S: ReadAt>(source: &S, length: u64) -> Result<Self> {
        let mut header = header(source, 0)?;
        let is_at_end = header.le64(56) == AT_END;
        check_description(source, &header)?;
        if is_at_end {
            let footer = length.checked_sub(2 * SECTOR);
            header = self::header(source, footer.ok_or(Error::Damaged("it is cut off"))?)?;
            if !header.starts_with(0, b"KDMV") {
                return Err(Error::Damaged("it is cut off: its end has no header"));
            }
        }
        let version = header.le32(4);
        if !(1..=3).contains(&version) {
            return Err(Error::unsupported(format!("version {version} of VMDK")));
        }
        let flags = header.le32(8);
        let is_compressed = flags & IS_COMPRESSED != 0;
        if is_compressed && header.le16(77) != 1 {
            return Err(Error::unsupported("unknown compression"));
        }
        let (sectors, grain, entries) =
            (header.le64(12), header.le64(20), u64::from(header.le32(44)));
        let is_sound =
            GRAINS.contains(&grain) && grain.is_power_of_two() && ENTRIES.contains(&entries);
        if !is_sound {
            return Err(Error::Damaged(
                "the sizes of its grains and tables are impossible",
            ));
        }
        if sectors > LARGEST / SECTOR || sectors / grain > MOST_GRAINS {
            return Err(Error::unsupported(format!(
                "{sectors} sectors, which is too many"
            )));
        }
        let directory = header.le64(56).checked_mul(SECTOR);
        Ok(Self {
            size: sectors * SECTOR,
            grain: grain * SECTOR,
            entries,
            directory: directory.ok_or(Error::Damaged("an offset is too large"))?,
            has_zero_grains: flags & HAS_ZERO_GRAINS != 0,
            is_compressed,
            table: None,
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the bytes of a grain.
    pub(crate) fn unit(&self) -> u64 {
        self.grain
    }

    /// Returns the table of a number; none if all of its grains are zeros.
    fn table<S: ReadAt>(&mut self, source: &S, number: u64) -> Result<Option<&Header>> {
        if self
            .table
            .as_ref()
            .is_none_or(|(known, _)| *known != number)
        {
            let mut entry = [0; 4];
            let at = self.directory.checked_add(number * 4);
            read(
                source,
                at.ok_or(Error::Damaged("an offset is too large"))?,
                &mut entry,
            )?;
            let table = match u32::from_le_bytes(entry) {
                0 => None,
                at => {
                    let length = usize::try_from(self.entries * 4).unwrap_or_default();
                    let mut bytes = vec![0; length];
                    read(source, u64::from(at) * SECTOR, &mut bytes)?;
                    Some(Header(bytes))
                }
            };
            self.table = Some((number, table));
        }
        Ok(self.table.as_ref().and_then(|(_, table)| table.as_ref()))
    }

    pub(crate) fn locate<S: ReadAt>(&mut self, source: &S, grain: u64) -> Result<Piece> {
        let (entries, size) = (self.entries, self.grain);
        let (has_zero_grains, is_compressed) = (self.has_zero_grains, self.is_compressed);
        let Some(table) = self.table(source, grain / entries)? else {
            return Ok(Piece::Zeros);
        };
        let at = usize::try_from(grain % entries * 4).unwrap_or_default();
        let offset = match table.le32(at) {
            0 => return Ok(Piece::Zeros),
            1 if has_zero_grains => return Ok(Piece::Zeros),
            sector => u64::from(sector) * SECTOR,
        };
        if !is_compressed {
            return Ok(Piece::Plain(offset));
        }
        let mut marker = vec![0; MARKER as usize];
        read(source, offset, &mut marker)?;
        let length = u64::from(Header(marker).le32(8));
        if length > 2 * size {
            return Err(Error::Damaged("a compressed grain is too long"));
        }
        Ok(Piece::Packed(Packed {
            offset: offset + MARKER,
            length,
            compression: Compression::Zlib,
            unpacked: size,
            skip: 0,
        }))
    }

    /// Skips tables that are not there.
    pub(crate) fn next_data<S: ReadAt>(&mut self, source: &S, offset: u64) -> Result<u64> {
        let of_table = self.entries * self.grain;
        let mut at = offset;
        while at < self.size && self.table(source, at / of_table)?.is_none() {
            at = (at / of_table + 1) * of_table;
        }
        Ok(at)
    }
}

fn header<S: ReadAt>(source: &S, offset: u64) -> Result<Header> {
    let mut bytes = vec![0; SECTOR as usize];
    read(source, offset, &mut bytes)?;
    Ok(Header(bytes))
}

/// Checks that the disk is all in this file.
fn check_description<S: ReadAt>(source: &S, header: &Header) -> Result<()> {
    let (offset, sectors) = (header.le64(28), header.le64(36));
    let length = sectors.saturating_mul(SECTOR).min(LONGEST_DESCRIPTION);
    if offset == 0 || length == 0 {
        return Err(Error::unsupported(
            "a part of a disk that is split into more files",
        ));
    }
    let mut text = vec![0; usize::try_from(length).unwrap_or_default()];
    read(source, offset.saturating_mul(SECTOR), &mut text)?;
    let text = String::from_utf8_lossy(&text).to_lowercase();
    let value = |name: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix('='));
        value.map(|value| value.trim().trim_matches('"').to_owned())
    };
    if value("parentcid").is_some_and(|parent| parent != "ffffffff") {
        return Err(Error::unsupported(
            "a parent: it is the difference to another disk",
        ));
    }
    match value("createtype").as_deref() {
        Some("monolithicsparse" | "streamoptimized") => Ok(()),
        Some(kind) => Err(Error::unsupported(format!(
            "the kind {}, whose contents are in other files",
            kind.escape_default()
        ))),
        None => Err(Error::Damaged("its description has no kind")),
    }
}
