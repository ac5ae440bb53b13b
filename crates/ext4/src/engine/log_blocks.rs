//! Builds the blocks of a transaction in the log.

use alloc::borrow::Cow;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use crate::format::fields;
use crate::format::journal::{self, Commit, Header, RevokeHeader, Tag};
use micabox_file::Timestamp;
use micabox_file::narrow::{low32, saturate32};

/// Returns the contents of a changed block as the log has them: what begins as one of the log's own
/// blocks gets another beginning.
pub(super) fn escape(data: &[u8]) -> Cow<'_, [u8]> {
    if fields::get_be::<u32>(data, 0) != journal::MAGIC {
        return Cow::Borrowed(data);
    }
    let mut copy = data.to_vec();
    fields::put_be(&mut copy, 0, 0u32);
    Cow::Owned(copy)
}

fn checksum_tail(superblock: &journal::Superblock) -> usize {
    if superblock.has_checksums() { 4 } else { 0 }
}

/// Returns the number of changed blocks that a descriptor has room for.
pub(super) fn tags_per_descriptor(superblock: &journal::Superblock, block_size: usize) -> usize {
    // The first tag of a descriptor is followed by a UUID.
    let room = block_size - Header::SIZE - checksum_tail(superblock) - 16;
    (room / superblock.tag_size()).max(1)
}

/// Builds the descriptor of changed blocks, which follow it in the log.
pub(super) fn descriptor_block(
    superblock: &journal::Superblock,
    sequence: u32,
    changed: &[(u64, Cow<'_, [u8]>)],
    block_size: usize,
) -> Vec<u8> {
    let sums = superblock.has_checksums();
    let mut block = vec![0; block_size];
    Header {
        magic: journal::MAGIC,
        block_type: journal::DESCRIPTOR,
        sequence,
    }
    .encode_into(&mut block);
    let mut at = Header::SIZE;
    for (index, (number, data)) in changed.iter().enumerate() {
        let mut flags = if index == 0 {
            0
        } else {
            journal::TAG_SAME_UUID
        };
        if index + 1 == changed.len() {
            flags |= journal::TAG_LAST;
        }
        if matches!(data, Cow::Owned(_)) {
            flags |= journal::TAG_ESCAPED;
        }
        let checksum = if sums {
            journal::tag_checksum(superblock.seed(), sequence, data)
        } else {
            0
        };
        let tag = Tag {
            block: *number,
            flags,
            checksum,
        };
        if let Some(place) = block.get_mut(at..at + superblock.tag_size()) {
            tag.encode_into(superblock, place);
        }
        at += superblock.tag_size();
        if index == 0 {
            if let Some(place) = block.get_mut(at..at + 16) {
                place.copy_from_slice(&superblock.uuid);
            }
            at += 16;
        }
    }
    if sums {
        journal::seal_tail(superblock.seed(), &mut block);
    }
    block
}

/// Builds the block that commits a transaction.
pub(super) fn commit_block(
    superblock: &journal::Superblock,
    sequence: u32,
    now: Timestamp,
    block_size: usize,
) -> Vec<u8> {
    let mut block = vec![0; block_size];
    let mut commit = Commit {
        magic: journal::MAGIC,
        block_type: journal::COMMIT,
        sequence,
        seconds: now.seconds.cast_unsigned(),
        nanos: now.nanos,
        ..Commit::default()
    };
    commit.encode_into(&mut block);
    if superblock.has_checksums() {
        commit.checksum[0] = journal::commit_checksum(superblock.seed(), &block);
        commit.encode_into(&mut block);
    }
    block
}

/// Builds the blocks that list revoked blocks.
pub(super) fn revoke_blocks(
    superblock: &journal::Superblock,
    sequence: u32,
    revoked: &BTreeSet<u64>,
    block_size: usize,
) -> Vec<Vec<u8>> {
    let wide = superblock.has_incompat(journal::INCOMPAT_64BIT);
    let width = if wide { 8 } else { 4 };
    let sums = superblock.has_checksums();
    let room = block_size - RevokeHeader::SIZE - checksum_tail(superblock);
    let numbers: Vec<u64> = revoked.iter().copied().collect();
    let blocks = numbers.chunks((room / width).max(1)).map(|numbers| {
        let mut block = vec![0; block_size];
        RevokeHeader {
            magic: journal::MAGIC,
            block_type: journal::REVOKE,
            sequence,
            bytes: saturate32(RevokeHeader::SIZE + numbers.len() * width),
        }
        .encode_into(&mut block);
        for (index, &number) in numbers.iter().enumerate() {
            let at = RevokeHeader::SIZE + index * width;
            if wide {
                fields::put_be(&mut block, at, number);
            } else {
                fields::put_be(&mut block, at, low32(number));
            }
        }
        if sums {
            journal::seal_tail(superblock.seed(), &mut block);
        }
        block
    });
    blocks.collect()
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::super::{Ext4, Options, Owner, ROOT};
    use crate::device::Memory;
    use crate::mkfs::{self, Journal};

    #[test]
    fn the_journals_log_wraps_around() {
        const SIZE: u64 = 32 << 20;
        let mut device = Memory::new(SIZE as usize);
        let options = mkfs::Options {
            uuid: [1; 16],
            label: [0; 16],
            time: 1,
            inodes: None,
            journal: Journal::Bytes(4 << 20),
            reserved: 0,
        };
        mkfs::mkfs(&mut device, SIZE, &options).unwrap();
        let mut filesystem = Ext4::open(device, Options::default()).unwrap();
        let (mut last, mut rounds) = (0, 0);
        for number in 0..500u32 {
            let name = number.to_be_bytes().map(|byte| b'a' + byte % 16);
            let name = [&name[..], &std::format!("{number}").into_bytes()].concat();
            filesystem.create(ROOT, &name, Owner::root(0o600)).unwrap();
            filesystem.sync().unwrap();
            let head = filesystem.journal.as_ref().unwrap().head;
            rounds += u32::from(head < last);
            last = head;
            if number % 50 == 0 {
                // Opens a copy, as after a crash.
                let copy = Memory::from(filesystem.device().bytes().to_vec());
                let mut copy = Ext4::open(copy, Options::default()).unwrap();
                assert_eq!(copy.read_dir(ROOT).unwrap().len(), number as usize + 2);
                let copy = copy.close().unwrap();
                assert_eq!(crate::check::check(&copy), []);
            }
        }
        assert!(rounds >= 3, "{rounds}");
    }
}
