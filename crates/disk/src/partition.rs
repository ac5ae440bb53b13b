//! The partitions of a disk: GPT (UEFI specification, 5.3) and MBR.

use crate::bytes::Header;
use crate::{Disk, Error, ReadAt, Result, SECTOR, filesystem};

/// Most partitions that are looked at.
const MOST: u32 = 256;

/// Sizes of sectors that a GPT may count in.
const SECTORS: [u64; 2] = [SECTOR, 4096];

/// Types of MBR partitions that are tables themselves, and of one that stands for a GPT.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
const PROTECTIVE: u8 = 0xee;

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as Linux counts.
    pub number: u32,
    /// Its first byte on the disk.
    pub start: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// A table of partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// `GPT` or `MBR`.
    pub kind: &'static str,
    /// What it lists.
    pub partitions: Vec<Partition>,
}

/// Returns the table of a disk's partitions, if it has one.
///
/// # Errors
/// [`Error`].
pub fn list<S: ReadAt>(disk: &mut Disk<S>) -> Result<Option<Table>> {
    let table = |kind| move |partitions| Table { kind, partitions };
    for sector in SECTORS {
        if let Some(found) = gpt(disk, sector)? {
            return Ok(Some(found).map(table("GPT")));
        }
    }
    Ok(mbr(disk)?.map(table("MBR")))
}

/// Returns the partition of a number, or else the only one that can be a root.
///
/// # Errors
/// [`Error::NoPartition`], [`Error::NoFilesystem`], [`Error::Ambiguous`]; others of [`Error`].
pub fn choose<S: ReadAt>(
    disk: &mut Disk<S>,
    partitions: &[Partition],
    number: Option<u32>,
) -> Result<Partition> {
    if let Some(number) = number {
        let mut partitions = partitions.iter();
        let found = partitions.find(|partition| partition.number == number);
        return found.copied().ok_or(Error::NoPartition(number));
    }
    let mut found = Vec::new();
    for partition in partitions {
        let kind = filesystem::at(disk, partition.start, partition.length)?;
        found.extend(kind.map(|kind| (*partition, kind)));
    }
    let names = |found: &[(Partition, filesystem::Kind)]| {
        let names = found
            .iter()
            .map(|(at, kind)| format!("{} is {kind}", at.number));
        names.collect::<Vec<_>>().join(", ")
    };
    found.retain(|(_, kind)| kind.may_be_root());
    match found.as_slice() {
        [(only, kind)] if kind.is_read() => Ok(*only),
        roots if roots.iter().any(|(_, kind)| kind.is_read()) => {
            Err(Error::Ambiguous(names(roots)))
        }
        [] => Err(Error::NoFilesystem(String::new())),
        others => Err(Error::NoFilesystem(format!(": {}", names(others)))),
    }
}

fn read<S: ReadAt>(disk: &mut Disk<S>, offset: u64, length: usize) -> Result<Option<Header>> {
    let end = offset.checked_add(length as u64);
    if end.is_none_or(|end| end > disk.size()) {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    disk.read(offset, &mut bytes)?;
    Ok(Some(Header(bytes)))
}

/// Adds a partition of `count` sectors, as far as it is on the disk.
fn add(
    found: &mut Vec<Partition>,
    number: u32,
    (first, count): (u64, u64),
    sector: u64,
    size: u64,
) {
    let start = first.checked_mul(sector);
    let end = first
        .checked_add(count)
        .and_then(|end| end.checked_mul(sector));
    if let (Some(start), Some(end)) = (start, end)
        && start < end
        && end <= size
    {
        found.push(Partition {
            number,
            start,
            length: end - start,
        });
    }
}

fn gpt<S: ReadAt>(disk: &mut Disk<S>, sector: u64) -> Result<Option<Vec<Partition>>> {
    let Some(header) = read(disk, sector, 92)? else {
        return Ok(None);
    };
    if !header.starts_with(0, b"EFI PART") {
        return Ok(None);
    }
    let (first, count, length) = (header.le64(72), header.le32(80), header.le32(84));
    if !(128..=4096).contains(&length) {
        return Err(Error::Damaged("its partition table has impossible entries"));
    }
    let mut found = Vec::new();
    let table = first.checked_mul(sector);
    let mut at = table.ok_or(Error::Damaged(
        "its partition table has an impossible place",
    ))?;
    for number in 1..=count.min(MOST) {
        let Some(entry) = read(disk, at, 128)? else {
            return Err(Error::Damaged("its partition table lies behind its end"));
        };
        let (first, last) = (entry.le64(32), entry.le64(40));
        if !entry.starts_with(0, &[0; 16]) && last >= first {
            let count = (last - first).saturating_add(1);
            add(&mut found, number, (first, count), sector, disk.size());
        }
        at += u64::from(length);
    }
    Ok(Some(found))
}

/// The four entries of a table: type, first sector, number of sectors.
fn entries(table: &Header) -> impl Iterator<Item = (u8, u64, u64)> + '_ {
    (0..4).map(|index| {
        let at = 446 + 16 * index;
        let (first, count) = (table.le32(at + 8), table.le32(at + 12));
        (table.byte(at + 4), first.into(), count.into())
    })
}

fn mbr<S: ReadAt>(disk: &mut Disk<S>) -> Result<Option<Vec<Partition>>> {
    let Some(table) = read(disk, 0, 512)? else {
        return Ok(None);
    };
    // Boot sectors of some filesystems end like a table, so at least one entry must have a type.
    let is_table =
        table.starts_with(510, &[0x55, 0xaa]) && entries(&table).any(|entry| entry.0 != 0);
    if !is_table {
        return Ok(None);
    }
    let (mut found, mut chain) = (Vec::new(), None);
    for ((kind, first, count), number) in entries(&table).zip(1..) {
        match kind {
            0 | PROTECTIVE => {}
            kind if EXTENDED.contains(&kind) => chain = Some(first),
            _ => add(&mut found, number, (first, count), SECTOR, disk.size()),
        }
    }
    // Logical partitions: each table has one, and the place of the next table.
    let start = chain.unwrap_or_default();
    let mut next = chain;
    for number in 5..MOST {
        let Some(at) = next.take() else { break };
        let Some(table) = read(disk, at * SECTOR, 512)? else {
            break;
        };
        if !table.starts_with(510, &[0x55, 0xaa]) {
            break;
        }
        for (kind, first, count) in entries(&table).take(2) {
            match kind {
                0 => {}
                kind if EXTENDED.contains(&kind) => next = Some(start + first),
                _ => add(&mut found, number, (at + first, count), SECTOR, disk.size()),
            }
        }
    }
    Ok(Some(found))
}
