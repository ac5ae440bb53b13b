//! Manages the log: the positions of its blocks, and which of them are in use.

use alloc::vec;
use alloc::vec::Vec;

use super::{Ext4, Io};
use crate::device::BlockDevice;
use crate::error::{Error, Place, Result};
use crate::format::features::incompat;
use crate::format::journal::{self, Superblock};
use micabox_file::narrow::saturate32;

/// Blocks of the log that are consecutive on the device.
#[derive(Debug, Clone, Copy)]
struct Run {
    first: u32,
    physical: u64,
    count: u32,
}

/// The blocks of the filesystem that the log consists of.
pub(crate) struct Places(Vec<(u64, u32)>);

impl Places {
    fn of(runs: &[Run]) -> Self {
        let mut places: Vec<_> = runs.iter().map(|run| (run.physical, run.count)).collect();
        places.sort_unstable();
        Self(places)
    }

    fn overlap(&self) -> bool {
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        pairs
            .into_iter()
            .any(|(one, other)| one.0 + u64::from(one.1) > other.0)
    }

    /// Whether the block is the log's.
    pub(crate) fn contain(&self, block: u64) -> bool {
        let behind = self.0.partition_point(|place| place.0 <= block);
        behind
            .checked_sub(1)
            .and_then(|index| self.0.get(index))
            .is_some_and(|place| block - place.0 < u64::from(place.1))
    }
}

/// The log of an open filesystem.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) superblock: Superblock,
    runs: Vec<Run>,
    /// Position of the next transaction.
    pub(crate) head: u32,
    /// Sequence number of the next transaction.
    pub(crate) sequence: u32,
    /// Number of blocks of transactions that are not all in place, from `superblock.start` on.
    pub(crate) used: u32,
    /// Whether log and superblock on the device state that the log may need replay.
    pub(crate) marked: bool,
}

impl Journal {
    fn corrupt(problem: &'static str) -> Error {
        Place::Journal.corrupt(problem)
    }

    /// Finds the log and checks its superblock.
    pub(crate) fn load<D: BlockDevice>(filesystem: &mut Ext4<D>) -> Result<Self> {
        let ino = filesystem.superblock.journal_inode;
        if ino == 0 {
            return Err(Error::Unsupported("an external journal"));
        }
        let size = filesystem.inode(ino)?.raw.size();
        let blocks = filesystem.geometry.blocks_for(size);
        let blocks = u32::try_from(blocks).map_err(|_| Self::corrupt("the log is too large"))?;
        let mut runs: Vec<Run> = Vec::new();
        let mut first = 0;
        let mut budget = filesystem.budget(ino);
        while first < blocks {
            let mapping = filesystem.map(ino, first)?;
            budget.take(&mapping)?;
            let physical = mapping.physical.ok_or(Self::corrupt("the log has holes"))?;
            let count = mapping.length.min(blocks - first);
            runs.push(Run {
                first,
                physical,
                count,
            });
            first += count;
        }
        if Places::of(&runs).overlap() {
            return Err(Self::corrupt("the log has a block twice"));
        }
        let mut journal = Self {
            superblock: Superblock::default(),
            runs,
            head: 0,
            sequence: 0,
            used: 0,
            marked: false,
        };
        let mut block = vec![0; filesystem.geometry.block_size];
        filesystem
            .io
            .read_blocks(journal.physical(0)?.0, &mut block)?;
        let superblock = Superblock::decode(&block);
        if superblock.magic != journal::MAGIC
            || !matches!(
                superblock.block_type,
                journal::SUPERBLOCK_V1 | journal::SUPERBLOCK_V2
            )
        {
            return Err(Self::corrupt("no superblock"));
        }
        if superblock.has_checksums() {
            if superblock.has_incompat(journal::INCOMPAT_CSUM_V2 | journal::INCOMPAT_CSUM_V3) {
                return Err(Self::corrupt("two kinds of checksums"));
            }
            let bytes = block.get(..Superblock::SIZE).unwrap_or_default();
            if Superblock::checksum_of(bytes) != superblock.checksum {
                return Err(Self::corrupt("the superblock's checksum is wrong"));
            }
        }
        if superblock.block_type == journal::SUPERBLOCK_V2
            && (superblock.feature_incompat & !journal::INCOMPAT_KNOWN != 0
                || superblock.feature_ro_compat != 0)
        {
            return Err(Error::Unsupported("an unknown feature of the journal"));
        }
        if superblock.block_size as usize != filesystem.geometry.block_size
            || superblock.blocks > blocks
            || superblock.first == 0
            || superblock.first >= superblock.end()
            || superblock.start >= superblock.blocks
        {
            return Err(Self::corrupt("the superblock contradicts the filesystem"));
        }
        journal.superblock = superblock;
        Ok(journal)
    }

    /// Returns the position of a block of the log, and the number of consecutive blocks from it on.
    pub(crate) fn physical(&self, block: u32) -> Result<(u64, u32)> {
        let index = self.runs.partition_point(|run| run.first <= block);
        index
            .checked_sub(1)
            .and_then(|index| self.runs.get(index))
            .and_then(|run| {
                let within = block - run.first;
                (within < run.count).then(|| (run.physical + u64::from(within), run.count - within))
            })
            .ok_or(Self::corrupt("a block past the log's end"))
    }

    /// Returns the blocks of the filesystem that the log consists of.
    pub(crate) fn places(&self) -> Places {
        Places::of(&self.runs)
    }

    /// Returns the block of the ring after `block`.
    pub(crate) fn next(&self, block: u32) -> u32 {
        self.advance(block, 1)
    }

    /// Returns the block of the ring `count` after `block`; `count` is at most the ring's length.
    pub(crate) fn advance(&self, block: u32, count: u32) -> u32 {
        let next = u64::from(block) + u64::from(count);
        let end = u64::from(self.superblock.end());
        if next < end {
            saturate32(next)
        } else {
            saturate32(next - end) + self.superblock.first
        }
    }

    /// Returns the number of blocks in the ring.
    pub(crate) fn capacity(&self) -> u32 {
        self.superblock.end() - self.superblock.first
    }

    /// Returns how many blocks a transaction may change before it is committed.
    pub(crate) fn transaction_bound(&self) -> usize {
        (self.capacity() / 4) as usize
    }

    /// Writes blocks to the ring from `head` on.
    pub(crate) fn append<D: BlockDevice>(
        &mut self,
        io: &mut Io<D>,
        blocks: &[&[u8]],
    ) -> Result<()> {
        let mut rest = blocks;
        while !rest.is_empty() {
            let (physical, in_row) = self.physical(self.head)?;
            let to_end = self.superblock.end().saturating_sub(self.head);
            let count = rest.len().min(in_row.min(to_end) as usize).max(1);
            let (now, later) = rest.split_at(count);
            io.write_blocks(physical, now)?;
            self.head = self.advance(self.head, saturate32(count));
            self.used += saturate32(count);
            rest = later;
        }
        Ok(())
    }

    /// Writes the log's superblock.
    pub(crate) fn store_superblock<D: BlockDevice>(&self, io: &mut Io<D>) -> Result<()> {
        let (physical, _) = self.physical(0)?;
        let mut block = vec![0; io.block_size];
        io.read_blocks(physical, &mut block)?;
        self.superblock.seal_into(&mut block);
        io.write_blocks(physical, &[&block])
    }
}

impl<D: BlockDevice> Ext4<D> {
    /// Prepares the log for transactions. The log must be empty: replayed, or left clean.
    pub(crate) fn open_journal(&mut self) -> Result<()> {
        if !self
            .superblock
            .has_compat(crate::format::features::compat::HAS_JOURNAL)
        {
            return Ok(());
        }
        let mut journal = Journal::load(self)?;
        if journal.superblock.block_type == journal::SUPERBLOCK_V1 {
            return Err(Error::ReadOnlyFeature("a journal of the first version"));
        }
        if journal.capacity() < 64 {
            return Err(Error::ReadOnlyFeature("a journal too small to be one"));
        }
        self.take_error_of(&journal, true)?;
        self.discard_log(&mut journal)?;
        let superblock = &mut journal.superblock;
        // The log's superblock is written after the filesystem's, which has the error now.
        superblock.error = 0;
        superblock.feature_compat &= !journal::COMPAT_CHECKSUM;
        superblock.feature_incompat &=
            !(journal::INCOMPAT_CSUM_V2 | journal::INCOMPAT_ASYNC_COMMIT);
        superblock.feature_incompat |= journal::INCOMPAT_REVOKE;
        if self.geometry.has_checksums {
            superblock.feature_incompat |= journal::INCOMPAT_CSUM_V3;
            superblock.checksum_type = journal::CHECKSUM_CRC32C;
        } else {
            superblock.feature_incompat &= !journal::INCOMPAT_CSUM_V3;
        }
        if self.superblock.has_incompat(incompat::BIT64) {
            superblock.feature_incompat |= journal::INCOMPAT_64BIT;
        }
        journal.sequence = superblock.sequence.max(1);
        journal.head = superblock.first;
        self.journal = Some(journal);
        Ok(())
    }
}
