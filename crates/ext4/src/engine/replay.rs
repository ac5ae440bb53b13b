//! Replays the log: to disk for writing, in memory for reading.

use alloc::vec;
use alloc::vec::Vec;

use hashbrown::{HashMap, HashSet};

use super::io::Copy;
use super::journal::Journal;
use super::{Ext4, Io};
use crate::device::BlockDevice;
use crate::error::{Error, Place, Result};
use crate::format::features::incompat;
use crate::format::fields;
use crate::format::journal::{self, Commit, Header, RevokeHeader, Tag};
use crate::format::superblock::STATE_ERROR;
use micabox_file::narrow::low16;

/// Maximum number of blocks written in place with one request.
const BATCH: usize = 256;

/// A transaction's copy of a block.
struct Logged {
    block: u64,
    copy: Copy,
    sequence: u32,
}

/// The contents of the log.
#[derive(Default)]
struct Scan {
    logged: Vec<Logged>,
    /// The last transaction that revoked a block, by block.
    revoked: HashMap<u64, u32>,
    /// The sequence number after that of the last committed transaction.
    end: u32,
}

/// Whether transaction `a` came after `b`; sequence numbers wrap around.
fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

impl<D: BlockDevice> Ext4<D> {
    /// Applies all committed transactions: to the device if `write`, otherwise in memory.
    pub(crate) fn replay(&mut self, write: bool) -> Result<()> {
        let mut journal = Journal::load(self)?;
        self.take_error_of(&journal, write)?;
        let scan = Scan::run(&journal, &self.io)?;
        self.refuse_fast_commits(&journal, scan.end)?;
        let log = journal.places();
        for Logged {
            block,
            copy,
            sequence,
        } in scan.logged
        {
            let revoked = scan
                .revoked
                .get(&block)
                .is_some_and(|&by| !is_after(sequence, by));
            if !revoked {
                // Written in place, it would change what is still to be replayed.
                if log.contain(block) {
                    return Err(Place::Journal.corrupt("a block of the log is logged"));
                }
                self.io.overlay.insert(block, copy);
            }
        }
        if write {
            self.apply_overlay()?;
            journal.superblock.start = 0;
            journal.superblock.sequence = scan.end.wrapping_add(1).max(1);
            journal.store_superblock(&mut self.io)?;
            // The filesystem's recovery flag may be cleared only after the log is marked as empty.
            self.io.flush()?;
            self.clear_recover_flag()?;
        }
        Ok(())
    }

    /// Discards a log whose replay the filesystem does not request: its transactions are void, and
    /// no later transaction may have one of their numbers.
    pub(crate) fn discard_log(&mut self, journal: &mut Journal) -> Result<()> {
        if journal.superblock.start != 0 {
            let scan = Scan::run(journal, &self.io)?;
            journal.superblock.start = 0;
            journal.superblock.sequence = scan.end.wrapping_add(1).max(1);
            journal.store_superblock(&mut self.io)?;
            self.io.flush()?;
        }
        Ok(())
    }

    fn apply_overlay(&mut self) -> Result<()> {
        let overlay = core::mem::take(&mut self.io.overlay);
        let mut blocks: Vec<(u64, Copy)> = overlay.into_iter().collect();
        while !blocks.is_empty() {
            // As many consecutive blocks as fit in a request.
            let in_row = blocks
                .iter()
                .zip(blocks.iter().skip(1))
                .take_while(|(a, b)| a.0 + 1 == b.0)
                .take(BATCH - 1)
                .count()
                + 1;
            let mut buf = vec![0; in_row * self.io.block_size];
            let first = blocks.first().map_or(0, |(block, _)| *block);
            for ((_, copy), place) in blocks
                .drain(..in_row)
                .zip(buf.chunks_exact_mut(self.io.block_size))
            {
                self.io.read_blocks(copy.block, place)?;
                if copy.escaped {
                    fields::put_be(place, 0, journal::MAGIC);
                }
            }
            self.io.write_blocks(first, &[&buf])?;
        }
        self.io.flush()
    }

    /// Transfers the error that stopped the log to the filesystem's state.
    pub(crate) fn take_error_of(&mut self, journal: &Journal, write: bool) -> Result<()> {
        if journal.superblock.error != 0 {
            self.superblock.state |= STATE_ERROR;
        }
        if write { self.refuse_errors() } else { Ok(()) }
    }

    fn clear_recover_flag(&mut self) -> Result<()> {
        let (block, offset) = self.superblock_place();
        let mut bytes = vec![0; self.io.block_size];
        self.io.read_blocks(block, &mut bytes)?;
        if let Some(place) = bytes
            .get_mut(offset..)
            .and_then(|rest| rest.first_chunk_mut())
        {
            let mut superblock = crate::format::superblock::Superblock::decode(place);
            superblock.feature_incompat &= !incompat::RECOVER;
            superblock.keep_errors_of(&self.superblock);
            superblock.seal_into(place);
        }
        self.io.write_blocks(block, &[&bytes])?;
        self.io.flush()
    }

    /// Rejects a log that ends with a fast commit. Fast commits describe changes instead of blocks.
    fn refuse_fast_commits(&self, journal: &Journal, expected: u32) -> Result<()> {
        if !journal
            .superblock
            .has_incompat(journal::INCOMPAT_FAST_COMMIT)
        {
            return Ok(());
        }
        let mut block = vec![0; self.io.block_size];
        self.io
            .read_blocks(journal.physical(journal.superblock.end())?.0, &mut block)?;
        let is_head = fields::get::<u16>(&block, 0) == journal::FAST_COMMIT_HEAD;
        if is_head && fields::get::<u32>(&block, 8) == expected {
            return Err(Error::Unsupported(
                "fast commits in its journal; mount it once with Linux",
            ));
        }
        Ok(())
    }
}

/// A pass over the log, from its oldest transaction on.
struct Pass<'a, D> {
    journal: &'a Journal,
    io: &'a Io<D>,
    scan: Scan,
    /// The next block of the log.
    at: u32,
    /// The number of blocks left until the log would begin again.
    budget: u32,
    /// What the current transaction has logged, and whether its checksum is right.
    logged: Vec<(u64, Copy, bool)>,
    /// What the current transaction has revoked.
    revoked: HashSet<u64>,
    /// The checksum of the current transaction, in version 1.
    checksum: u32,
    /// Room for a logged block.
    copy: Vec<u8>,
}

impl Scan {
    fn run<D: BlockDevice>(journal: &Journal, io: &Io<D>) -> Result<Self> {
        let superblock = &journal.superblock;
        let scan = Self {
            end: superblock.sequence,
            ..Self::default()
        };
        if superblock.start == 0 {
            return Ok(scan);
        }
        if superblock.start < superblock.first || superblock.start >= superblock.end() {
            return Err(Place::Journal.corrupt("the log starts outside of itself"));
        }
        let mut pass = Pass {
            journal,
            io,
            scan,
            at: superblock.start,
            budget: journal.capacity(),
            logged: Vec::new(),
            revoked: HashSet::new(),
            checksum: !0,
            copy: vec![0; io.block_size],
        };
        let mut block = vec![0; io.block_size];
        while pass.budget > 0 && pass.step(&mut block)? {}
        Ok(pass.scan)
    }
}

impl<D: BlockDevice> Pass<'_, D> {
    /// Reads the next block of the log into `block`, and what belongs to it. Returns false at the end of what was
    /// committed.
    fn step(&mut self, block: &mut [u8]) -> Result<bool> {
        let superblock = &self.journal.superblock;
        self.io
            .read_blocks(self.journal.physical(self.at)?.0, block)?;
        self.budget -= 1;
        let header = Header::decode(block);
        if header.magic != journal::MAGIC || header.sequence != self.scan.end {
            return Ok(false);
        }
        let seed = superblock.seed();
        let tail_is_right = !superblock.has_checksums()
            || journal::tail_checksum(seed, block)
                == fields::get_be::<u32>(block, block.len().saturating_sub(4));
        self.at = self.journal.next(self.at);
        match header.block_type {
            journal::DESCRIPTOR if tail_is_right => self.describe(block)?,
            journal::REVOKE if tail_is_right => self.revoke(block),
            journal::COMMIT if commit_is_right(superblock, seed, block, self.checksum) => {
                self.commit()?;
            }
            // Anything else was never committed.
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads the blocks that a descriptor describes, which follow it.
    fn describe(&mut self, descriptor: &[u8]) -> Result<()> {
        let superblock = &self.journal.superblock;
        self.checksum = crc32_be(self.checksum, descriptor);
        for tag in tags(superblock, descriptor) {
            if self.budget == 0 {
                break;
            }
            self.budget -= 1;
            if tag.block >= self.io.blocks_count {
                return Err(Place::Journal.corrupt("a block past the filesystem's end"));
            }
            let (physical, _) = self.journal.physical(self.at)?;
            if superblock.has_checksums() || has_v1_checksum(superblock) {
                self.io.read_blocks(physical, &mut self.copy)?;
                self.checksum = crc32_be(self.checksum, &self.copy);
            }
            let right = !superblock.has_checksums() || {
                let checksum = journal::tag_checksum(superblock.seed(), self.scan.end, &self.copy);
                if superblock.has_incompat(journal::INCOMPAT_CSUM_V3) {
                    checksum == tag.checksum
                } else {
                    low16(checksum) == low16(tag.checksum)
                }
            };
            let copy = Copy {
                block: physical,
                escaped: tag.flags & journal::TAG_ESCAPED != 0,
            };
            self.logged.push((tag.block, copy, right));
            self.at = self.journal.next(self.at);
        }
        Ok(())
    }

    /// Notes the blocks that a block of the log revokes.
    fn revoke(&mut self, block: &[u8]) {
        let header = RevokeHeader::decode(block);
        let superblock = &self.journal.superblock;
        let width = if superblock.has_incompat(journal::INCOMPAT_64BIT) {
            8
        } else {
            4
        };
        let end = (header.bytes as usize).min(block.len());
        let revoked_bytes = block.get(RevokeHeader::SIZE..end).unwrap_or_default();
        let numbers = revoked_bytes.chunks_exact(width).map(|number| match width {
            8 => fields::get_be::<u64>(number, 0),
            _ => fields::get_be::<u32>(number, 0).into(),
        });
        // Other numbers are never looked up.
        let count = self.io.blocks_count;
        self.revoked
            .extend(numbers.filter(|&number| number < count));
    }

    /// Ends the current transaction, which was committed.
    fn commit(&mut self) -> Result<()> {
        for (block, copy, right) in self.logged.drain(..) {
            if !right {
                return Err(Place::Journal.corrupt("the checksum of a committed block is wrong"));
            }
            self.scan.logged.push(Logged {
                block,
                copy,
                sequence: self.scan.end,
            });
        }
        for block in self.revoked.drain() {
            self.scan.revoked.insert(block, self.scan.end);
        }
        self.checksum = !0;
        self.scan.end = self.scan.end.wrapping_add(1);
        Ok(())
    }
}

/// Decodes the tags of a descriptor block.
fn tags(superblock: &journal::Superblock, block: &[u8]) -> Vec<Tag> {
    let tail = if superblock.has_checksums() { 4 } else { 0 };
    let end = block.len().saturating_sub(tail);
    let size = superblock.tag_size();
    let mut at = Header::SIZE;
    let mut tags = Vec::new();
    while let Some(bytes) = block.get(at..at + size).filter(|_| at + size <= end) {
        let tag = Tag::decode(superblock, bytes);
        at += size;
        if tag.flags & journal::TAG_SAME_UUID == 0 {
            at += 16;
        }
        tags.push(tag);
        if tag.flags & journal::TAG_LAST != 0 {
            break;
        }
    }
    tags
}

fn has_v1_checksum(superblock: &journal::Superblock) -> bool {
    superblock.block_type == journal::SUPERBLOCK_V2
        && superblock.feature_compat & journal::COMPAT_CHECKSUM != 0
}

fn commit_is_right(
    superblock: &journal::Superblock,
    seed: u32,
    block: &[u8],
    transaction_checksum: u32,
) -> bool {
    const CRC32: u8 = 1;
    let commit = Commit::decode(block);
    if superblock.has_checksums() {
        return journal::commit_checksum(seed, block) == commit.checksum[0];
    }
    !has_v1_checksum(superblock)
        || commit.checksum_type != CRC32
        || commit.checksum_size != 4
        || commit.checksum[0] == transaction_checksum
}

/// Computes the CRC-32 of version 1 checksums: most significant bit first, without inversions.
fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte: u32 = 0;
        while byte < 256 {
            let mut crc = byte << 24;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc << 1) ^ (0x04c1_1db7 & (crc >> 31).wrapping_neg());
                bit += 1;
            }
            table[byte as usize] = crc;
            byte += 1;
        }
        table
    };
    bytes.iter().fold(seed, |crc, &byte| {
        (crc << 8)
            ^ TABLE
                .get(((crc >> 24) as u8 ^ byte) as usize)
                .copied()
                .unwrap_or_default()
    })
}
