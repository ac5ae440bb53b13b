//! Commits transactions: writes changes from memory to the log, then into place.
//!
//! Ordered mode: a transaction is committed after the contents of files that it refers to are on
//! the device. Any number of operations share one transaction, which ends with [`Ext4::sync`] or
//! when it is full. Blocks in the log stay in memory until a checkpoint writes them in place, which
//! happens between transactions when the log is half full.
//!
//! Without a journal, a commit writes changed blocks in place.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use super::log_blocks::{
    commit_block, descriptor_block, escape, revoke_blocks, tags_per_descriptor,
};
use super::{Access, Ext4};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Error, Place, Result};
use crate::format::features::incompat;
use crate::format::superblock::{self, Superblock};
use micabox_file::narrow::{low8, low32};

/// The state of a running transaction besides changed blocks.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    /// Freed blocks: group, first block and number of blocks.
    pub(crate) freed: Vec<(u32, u32, u32)>,
    /// Total number of freed blocks.
    pub(crate) freed_blocks: u64,
    /// Blocks of which the log has copies that must not be replayed.
    pub(crate) revoked: BTreeSet<u64>,
    /// Whether the superblock changed in more than its counts.
    pub(crate) superblock: bool,
}

/// Maximum number of changed blocks kept in memory without a journal.
const UNLOGGED_BOUND: usize = 2048;

impl<D: BlockDevice> Ext4<D> {
    /// Makes all previous operations durable: a crash can't undo them afterwards.
    ///
    /// # Errors
    ///
    /// Those of the device. The filesystem then accepts no more writes, and the device has at least
    /// what the last successful call left.
    pub fn sync(&mut self) -> Result<()> {
        match self.access {
            Access::Read => return Ok(()),
            Access::Stopped => return Err(Error::Stopped),
            Access::Write => {}
        }
        self.commit()?;
        let flushed = self.io.flush();
        self.stop_on(flushed)
    }

    /// Whether the running transaction should end before the next change.
    pub(crate) fn transaction_is_full(&self) -> bool {
        let bound = self
            .journal
            .as_ref()
            .map_or(UNLOGGED_BOUND, |journal| journal.transaction_bound());
        let groups = self.dirty_groups.len() * 3;
        self.blocks.dirty_count() + groups + self.transaction.revoked.len() / 256 >= bound
    }

    /// Ends the running transaction, including the contents of the files that it refers to.
    pub(crate) fn commit(&mut self) -> Result<()> {
        let result = self.commit_all();
        self.stop_on(result)
    }

    fn commit_all(&mut self) -> Result<()> {
        while !self.write_back_some()? {
            // The allocated blocks have filled the transaction.
            self.commit_metadata()?;
        }
        self.commit_metadata()
    }

    fn commit_metadata(&mut self) -> Result<()> {
        let nothing = self.blocks.dirty_count() == 0
            && self.dirty_inodes.is_empty()
            && self.dirty_groups.is_empty()
            && self.transaction.revoked.is_empty()
            && !self.transaction.superblock;
        if nothing {
            return Ok(());
        }
        self.mark_in_use()?;
        self.store_inodes()?;
        self.store_groups()?;
        self.store_superblock()?;
        let numbers = self.blocks.seal().to_vec();
        if self.journal.is_some() {
            self.log(&numbers)?;
        } else {
            self.write_in_place(&numbers)?;
            self.io.flush()?;
        }
        self.blocks.committed(self.journal.is_some());
        self.transaction.revoked.clear();
        self.transaction.superblock = false;
        self.release_freed();
        let crowded = self.journal.as_ref().is_some_and(|journal| {
            journal.used > journal.capacity() / 2
                || self.blocks.logged_count() > journal.transaction_bound().max(4096) * 2
        });
        if crowded { self.checkpoint() } else { Ok(()) }
    }

    /// Marks the filesystem as in use, before the first commit: an opener must replay the log after
    /// a crash or, without a log, check the filesystem.
    fn mark_in_use(&mut self) -> Result<()> {
        match &self.journal {
            Some(journal) if journal.marked => return Ok(()),
            None if self.superblock.state & superblock::STATE_VALID == 0 => return Ok(()),
            _ => {}
        }
        if self.journal.is_some() {
            self.superblock.feature_incompat |= incompat::RECOVER;
        } else {
            self.superblock.state &= !superblock::STATE_VALID;
        }
        let (block, offset) = self.superblock_place();
        let mut bytes = vec![0; self.io.block_size];
        self.io.read_blocks(block, &mut bytes)?;
        if let Some(place) = bytes
            .get_mut(offset..)
            .and_then(|rest| rest.first_chunk_mut())
        {
            let mut now = Superblock::decode(place);
            now.feature_incompat = self.superblock.feature_incompat;
            now.state = self.superblock.state;
            now.seal_into(place);
        }
        self.io.write_blocks(block, &[&bytes])?;
        // A log with transactions would be discarded if the filesystem did not request recovery.
        self.io.flush()?;
        if let Some(journal) = &mut self.journal {
            journal.superblock.start = journal.head;
            journal.superblock.sequence = journal.sequence;
            journal.store_superblock(&mut self.io)?;
            journal.marked = true;
        }
        Ok(())
    }

    /// Writes the superblock to its block.
    fn store_superblock(&mut self) -> Result<()> {
        let now = self.now().seconds.cast_unsigned();
        self.superblock.set_free_blocks(self.free_blocks);
        self.superblock.free_inodes = self.free_inodes;
        self.superblock.last_orphan = self.orphans.newest();
        self.superblock.write_time = low32(now);
        self.superblock.write_time_hi = low8(now >> 32);
        let (block, offset) = self.superblock_place();
        let bytes = self.blocks.write(&self.io, block, Kind::Plain)?;
        if let Some(place) = bytes
            .get_mut(offset..)
            .and_then(|rest| rest.first_chunk_mut())
        {
            self.superblock.seal_into(place);
        }
        Ok(())
    }

    /// Writes the transaction to the log; it is committed when this function returns.
    fn log(&mut self, numbers: &[u64]) -> Result<()> {
        let now = self.now();
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        let block_size = self.io.block_size;
        let superblock = journal.superblock.clone();
        let sequence = journal.sequence;
        let revoked = &self.transaction.revoked;
        let revokes = revoke_blocks(&superblock, sequence, revoked, block_size);
        let mut changed = Vec::with_capacity(numbers.len());
        for &number in numbers {
            let data = self
                .blocks
                .cached(number)
                .ok_or(Place::Block(number).corrupt("a changed block was lost from the cache"))?;
            changed.push((number, escape(data)));
        }
        let per_descriptor = tags_per_descriptor(&superblock, block_size);
        let descriptors: Vec<Vec<u8>> = changed
            .chunks(per_descriptor)
            .map(|group| descriptor_block(&superblock, sequence, group, block_size))
            .collect();
        let total = revokes.len() + descriptors.len() + numbers.len() + 1;
        if total as u64 > u64::from(journal.capacity() - journal.used) {
            return Err(Place::Journal.corrupt("a transaction that does not fit into the log"));
        }
        let mut slices: Vec<&[u8]> = revokes.iter().map(|block| block.as_slice()).collect();
        for (descriptor, group) in descriptors.iter().zip(changed.chunks(per_descriptor)) {
            slices.push(descriptor);
            slices.extend(group.iter().map(|(_, data)| &**data));
        }
        journal.append(&mut self.io, &slices)?;
        // The commit block must not reach the device before the blocks that it commits and the
        // contents that those refer to.
        self.io.flush()?;
        let commit = commit_block(&superblock, sequence, now, block_size);
        journal.append(&mut self.io, &[&commit])?;
        self.io.flush()?;
        journal.sequence = journal.sequence.wrapping_add(1);
        Ok(())
    }

    /// Writes the blocks in the log into place and empties the log. Not while a transaction runs.
    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        let result = self.checkpoint_all();
        self.stop_on(result)
    }

    fn checkpoint_all(&mut self) -> Result<()> {
        let numbers = self.blocks.logged();
        self.write_in_place(&numbers)?;
        self.io.flush()?;
        self.blocks.checkpointed(&numbers);
        if let Some(journal) = &mut self.journal
            && journal.used > 0
        {
            journal.superblock.start = journal.head;
            journal.superblock.sequence = journal.sequence;
            journal.store_superblock(&mut self.io)?;
            // The log's blocks may be reused only after this.
            self.io.flush()?;
            journal.used = 0;
        }
        Ok(())
    }

    /// Writes blocks of the cache, given in ascending order, to the device; consecutive blocks in
    /// one request.
    fn write_in_place(&mut self, numbers: &[u64]) -> Result<()> {
        let mut slices: Vec<&[u8]> = Vec::new();
        let mut first = 0;
        for &number in numbers {
            let Some(data) = self.blocks.cached(number) else {
                continue;
            };
            if number != first + slices.len() as u64 && !slices.is_empty() {
                self.io.write_blocks(first, &slices)?;
                slices.clear();
            }
            if slices.is_empty() {
                first = number;
            }
            slices.push(data);
        }
        self.io.write_blocks(first, &slices)
    }

    /// Marks log and filesystem as clean. All blocks must be in place.
    pub(crate) fn mark_clean(&mut self) -> Result<()> {
        let mut changed = false;
        if let Some(journal) = &mut self.journal
            && journal.marked
        {
            journal.superblock.start = 0;
            journal.superblock.sequence = journal.sequence;
            journal.superblock.head = journal.head;
            journal.store_superblock(&mut self.io)?;
            self.io.flush()?;
            journal.marked = false;
            self.superblock.feature_incompat &= !incompat::RECOVER;
            changed = true;
        } else if self.journal.is_none() && self.superblock.state & superblock::STATE_VALID == 0 {
            self.superblock.state |= superblock::STATE_VALID;
            changed = true;
        }
        if changed {
            self.store_superblock()?;
            let numbers = self.blocks.seal().to_vec();
            self.write_in_place(&numbers)?;
            self.blocks.committed(false);
            self.io.flush()?;
        }
        Ok(())
    }
}
