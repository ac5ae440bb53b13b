//! Reads and writes blocks of the device, as a replayed journal would have left them.

use alloc::collections::BTreeMap;

use crate::device::BlockDevice;
use crate::error::{Place, Result};
use crate::format::fields;
use crate::format::journal;
use micabox_file::narrow::in_memory;

/// The location of a newer copy of a block in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy {
    /// The copy's block on the device.
    pub(crate) block: u64,
    /// The block starts with the log's magic number, for which the copy has zeros.
    pub(crate) escaped: bool,
}

/// A device that is accessed in blocks.
#[derive(Debug)]
pub(crate) struct Io<D> {
    pub(crate) device: D,
    pub(crate) block_size: usize,
    pub(crate) blocks_count: u64,
    /// Copies in the log that are newer than their blocks: only if a filesystem whose journal was
    /// not replayed is open for reading.
    pub(crate) overlay: BTreeMap<u64, Copy>,
    /// Whether something was written since the last flush.
    pub(crate) unflushed: bool,
}

impl<D: BlockDevice> Io<D> {
    pub(crate) fn new(device: D, block_size: usize, blocks_count: u64) -> Self {
        Self {
            device,
            block_size,
            blocks_count,
            overlay: BTreeMap::new(),
            unflushed: false,
        }
    }

    /// Makes all written blocks durable.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.unflushed {
            self.device.flush()?;
            self.unflushed = false;
        }
        Ok(())
    }

    fn offset(&self, block: u64) -> u64 {
        block.saturating_mul(self.block_size as u64)
    }

    /// Reads whole blocks from `first` on.
    pub(crate) fn read_blocks(&self, first: u64, buf: &mut [u8]) -> Result<()> {
        let count = (buf.len() / self.block_size.max(1)) as u64;
        if first
            .checked_add(count)
            .is_none_or(|end| end > self.blocks_count)
        {
            return Err(Place::Block(first).corrupt("a block number past the filesystem's end"));
        }
        self.device.read_at(self.offset(first), buf)?;
        for (&block, copy) in self.overlay.range(first..first + count) {
            let at = in_memory(block - first) * self.block_size;
            if let Some(place) = buf.get_mut(at..at + self.block_size) {
                self.device.read_at(self.offset(copy.block), place)?;
                if copy.escaped {
                    fields::put_be(place, 0, journal::MAGIC);
                }
            }
        }
        Ok(())
    }

    /// Writes whole blocks from `first` on.
    pub(crate) fn write_blocks(&mut self, first: u64, bufs: &[&[u8]]) -> Result<()> {
        let offset = self.offset(first);
        self.unflushed = true;
        match bufs {
            [] => Ok(()),
            [buf] => Ok(self.device.write_at(offset, buf)?),
            _ => Ok(self.device.write_vectored_at(offset, bufs)?),
        }
    }
}
