//! Makes a partition table around files that lie back to back on one device. The guest's kernel
//! makes a device of each partition, with or without a device mapper.
//!
//! Source: UEFI specification 2.10, section 5.2.3 (protective MBR) and 5.3 (GPT). All
//! numbers are little endian.

use std::ops::Range;

use flate2::Crc;
use sha2::{Digest, Sha256};

/// Bytes before the first partition and after the last one. Everything on a device is a multiple of
/// it, so that pages of 2 MiB can be mapped from every partition.
pub(super) const ROOM: u64 = 2 << 20;

/// Most partitions for which Linux makes devices (`DISK_MAX_PARTS`, whose first is the disk).
pub(super) const MOST: usize = 255;

/// Bytes of a logical block, which the kernel uses for pmem and we for disks.
const BLOCK: u64 = 512;

/// Fewest entries of a table (section 5.3.1: 16 KiB).
const FEWEST_ENTRIES: usize = 128;

/// Bytes of a header and of an entry.
const HEADER: usize = 92;
const ENTRY: usize = 128;

/// 0FC63DAF-8483-4772-8E79-3D69D8477DE4: Linux filesystem data, in on-disk byte order.
const LINUX_DATA: [u8; 16] = [
    0xAF, 0x3D, 0xC6, 0x0F, 0x83, 0x84, 0x72, 0x47, 0x8E, 0x79, 0x3D, 0x69, 0xD8, 0x47, 0x7D, 0xE4,
];

/// A partition table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The disk's GUID, in on-disk byte order.
    pub uuid: [u8; 16],
    /// The first bytes of the 2 MiB before the first partition.
    pub head: Vec<u8>,
    /// The last bytes of the 2 MiB after the last partition.
    pub tail: Vec<u8>,
}

impl Table {
    /// Makes a table for partitions of these lengths, back to back after the first 2 MiB: 1 to 255,
    /// each a multiple of 2 MiB. The same `seed` and lengths give the same bytes, GUIDs included.
    pub(super) fn of(seed: &[u8], lengths: &[u64]) -> Self {
        let uuid = guid(seed, 0);
        let mut entries = Vec::new();
        let mut first = ROOM / BLOCK;
        for (length, number) in lengths.iter().zip(1_u64..) {
            let end = first.saturating_add(length / BLOCK);
            entries.extend(entry(guid(&uuid, number), first..end, number));
            first = end;
        }
        let whole_blocks = entries.len().next_multiple_of(BLOCK as usize);
        entries.resize(whole_blocks.max(ENTRY * FEWEST_ENTRIES), 0);
        let blocks = first.saturating_add(ROOM / BLOCK);
        let table = Layout {
            uuid,
            usable: ROOM / BLOCK..first,
            entries: (entries.len() / ENTRY) as u32,
            checksum: crc32(&entries),
        };
        let (primary, backup) = (1, blocks.saturating_sub(1));
        let mut head = protective_mbr(blocks);
        head.extend(table.header(primary, backup, primary + 1));
        head.extend(&entries);
        let before_backup = backup.saturating_sub(entries.len() as u64 / BLOCK);
        let mut tail = entries;
        tail.extend(table.header(backup, primary, before_backup));
        Self { uuid, head, tail }
    }
}

/// The contents that both headers share.
struct Layout {
    uuid: [u8; 16],
    /// The blocks that partitions may use.
    usable: Range<u64>,
    entries: u32,
    /// CRC-32 of all entries.
    checksum: u32,
}

impl Layout {
    /// Makes a block with the header for block `own`, whose entries begin at block `entries` and
    /// whose copy is in block `other` (section 5.3.2).
    fn header(&self, own: u64, other: u64, entries: u64) -> Vec<u8> {
        let header = |checksum: u32| {
            let mut bytes = Vec::with_capacity(BLOCK as usize);
            bytes.extend(b"EFI PART");
            bytes.extend(0x0001_0000_u32.to_le_bytes());
            bytes.extend((HEADER as u32).to_le_bytes());
            bytes.extend(checksum.to_le_bytes());
            bytes.extend([0; 4]);
            let last = self.usable.end.saturating_sub(1);
            for block in [own, other, self.usable.start, last] {
                bytes.extend(block.to_le_bytes());
            }
            bytes.extend(self.uuid);
            bytes.extend(entries.to_le_bytes());
            bytes.extend(self.entries.to_le_bytes());
            bytes.extend((ENTRY as u32).to_le_bytes());
            bytes.extend(self.checksum.to_le_bytes());
            bytes
        };
        // The checksum is over the header with zeros in the checksum's place.
        let mut block = header(crc32(&header(0)));
        block.resize(BLOCK as usize, 0);
        block
    }
}

/// Returns the CRC-32 of Ethernet and of gzip, which is also GPT's (section 5.3.2).
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Makes an entry of the table (section 5.3.3) with the name `layer-NUMBER`.
fn entry(uuid: [u8; 16], blocks: Range<u64>, number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ENTRY);
    bytes.extend(LINUX_DATA);
    bytes.extend(uuid);
    bytes.extend(blocks.start.to_le_bytes());
    bytes.extend(blocks.end.saturating_sub(1).to_le_bytes());
    bytes.extend([0; 8]); // attributes
    let name = format!("layer-{number}");
    bytes.extend(name.encode_utf16().flat_map(u16::to_le_bytes));
    bytes.resize(ENTRY, 0);
    bytes
}

/// Makes the first block, which marks all of the disk as used for programs that don't support GPT
/// (section 5.2.3).
fn protective_mbr(blocks: u64) -> Vec<u8> {
    let mut bytes = vec![0; 446];
    bytes.extend([0x00, 0x00, 0x02, 0x00]); // not bootable; the first block in CHS
    bytes.extend([0xEE, 0xFF, 0xFF, 0xFF]); // GPT; an end that CHS can't express
    bytes.extend(1_u32.to_le_bytes());
    let rest = u32::try_from(blocks.saturating_sub(1)).unwrap_or(u32::MAX);
    bytes.extend(rest.to_le_bytes());
    bytes.resize(510, 0);
    bytes.extend([0x55, 0xAA]);
    bytes
}

/// Derives a GUID from other bytes: version 8 of RFC 9562, in on-disk byte order.
fn guid(seed: &[u8], number: u64) -> [u8; 16] {
    let hash = Sha256::new()
        .chain_update(seed)
        .chain_update(number.to_le_bytes())
        .finalize();
    let mut guid: [u8; 16] = std::array::from_fn(|index| hash[index]);
    // The field with the version is little endian.
    guid[7] = (guid[7] & 0x0F) | 0x80;
    guid[8] = (guid[8] & 0x3F) | 0x80;
    guid
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::process::Command;

    const MIB: u64 = 1 << 20;

    /// Makes a disk as a machine sees it, with empty partitions.
    fn disk(table: &Table, lengths: &[u64]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let length = 2 * ROOM + lengths.iter().sum::<u64>();
        file.as_file().set_len(length).unwrap();
        file.as_file().write_all_at(&table.head, 0).unwrap();
        let tail = length - table.tail.len() as u64;
        file.as_file().write_all_at(&table.tail, tail).unwrap();
        file
    }

    fn run(program: &str, arguments: &[&str], disk: &tempfile::NamedTempFile) -> String {
        let mut command = Command::new(program);
        let output = command.args(arguments).arg(disk.path()).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}; run scripts/setup"));
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        text.into_owned()
    }

    #[test]
    fn sfdisk_and_sgdisk_accept_the_partition_table() {
        let huge = 3 << 40;
        for lengths in [
            vec![2 * MIB],
            vec![4 * MIB, 2 * MIB, 300 * MIB],
            (1..=30).map(|number| number * 2 * MIB).collect(),
            vec![2 * MIB; MOST],
            vec![2 * MIB, huge],
        ] {
            let table = Table::of(b"seed", &lengths);
            assert!(table.head.len() as u64 <= ROOM && table.tail.len() as u64 <= ROOM);
            let disk = disk(&table, &lengths);
            let verified = run("sgdisk", &["--verify"], &disk);
            assert!(verified.contains("No problems found"), "{verified}");
            // sfdisk reports the number of errors at the end.
            let verified = run("sfdisk", &["--verify"], &disk);
            assert!(verified.contains("No errors detected"), "{verified}");
            // sfdisk also warns of layouts that it would not have made itself.
            assert!(!verified.contains("overlap"), "{verified}");

            let listed: serde_json::Value =
                serde_json::from_str(&run("sfdisk", &["--json"], &disk)).unwrap();
            let listed = &listed["partitiontable"];
            assert_eq!(listed["label"], "gpt");
            let partitions = listed["partitions"].as_array().unwrap();
            assert_eq!(partitions.len(), lengths.len());
            let mut at = ROOM;
            for (partition, length) in partitions.iter().zip(&lengths) {
                assert_eq!(partition["start"], at / BLOCK);
                assert_eq!(partition["size"], length / BLOCK);
                at += length;
            }
            let mut guids: Vec<_> = partitions.iter().map(|it| it["uuid"].as_str()).collect();
            guids.push(listed["id"].as_str());
            guids.sort_unstable();
            guids.dedup();
            assert_eq!(guids.len(), lengths.len() + 1);
        }
    }

    #[test]
    fn the_same_layers_get_the_same_partition_table() {
        let table = Table::of(b"seed", &[2 * MIB, 4 * MIB]);
        assert_eq!(table, Table::of(b"seed", &[2 * MIB, 4 * MIB]));
        assert_ne!(table.uuid, Table::of(b"weed", &[2 * MIB, 4 * MIB]).uuid);
    }
}
