//! Reads block maps: files of ext2 and ext3, and of filesystems converted from those.
//!
//! A map has twelve block numbers, then a block of numbers, a doubly and a triply indirect block.

use super::map::Mapping;
use super::{Ext4, Ino};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Place, Result};
use crate::format::fields;
use micabox_file::narrow::{in_memory, saturate32};

const DIRECT: u64 = 12;

fn hole(blocks: u64) -> Mapping {
    Mapping::hole(saturate32(blocks.min(u32::MAX.into())).max(1))
}

impl<D: BlockDevice> Ext4<D> {
    pub(crate) fn map_indirect(&mut self, ino: Ino, logical: u32) -> Result<Mapping> {
        let root = self.inode(ino)?.raw.block;
        let per_block = (self.geometry.block_size / 4) as u64;
        let mut rest = u64::from(logical);
        if rest < DIRECT {
            return self.run(ino, root.get(..48).unwrap_or_default(), in_memory(rest));
        }
        rest -= DIRECT;
        let mut covered = per_block;
        for level in 1..=3usize {
            if rest < covered {
                let pointer: u32 = fields::get(&root, 44 + 4 * level);
                return self.descend(ino, pointer, level, rest, covered);
            }
            rest -= covered;
            covered *= per_block;
        }
        Err(Place::Inode(ino).corrupt("a block past the end of its block map"))
    }

    /// Descends from a block that covers `covered` blocks to the numbers of the file's blocks.
    fn descend(
        &mut self,
        ino: Ino,
        pointer: u32,
        levels: usize,
        within: u64,
        covered: u64,
    ) -> Result<Mapping> {
        let per_block = (self.geometry.block_size / 4) as u64;
        let (mut pointer, mut within, mut covered) = (pointer, within, covered);
        for level in (1..=levels).rev() {
            if pointer == 0 {
                return Ok(hole(covered - within));
            }
            if level == 1 {
                break;
            }
            covered /= per_block;
            let index = in_memory(within / covered);
            within %= covered;
            let block = self.blocks.read(&self.io, pointer.into(), Kind::Plain)?;
            let mut pointers = block
                .chunks_exact(4)
                .skip(index)
                .map(|bytes| fields::get::<u32>(bytes, 0));
            pointer = pointers.next().unwrap_or(0);
            if pointer == 0 {
                // Skip the whole run of holes in one step.
                let more = pointers.take_while(|&pointer| pointer == 0).count() as u64;
                return Ok(hole((1 + more) * covered - within));
            }
        }
        let numbers = self
            .blocks
            .read(&self.io, pointer.into(), Kind::Plain)?
            .to_vec();
        self.run(ino, &numbers, in_memory(within))
    }

    /// Returns the run of consecutive numbers from the one at `index` on.
    fn run(&self, ino: Ino, numbers: &[u8], index: usize) -> Result<Mapping> {
        let mut numbers = numbers
            .chunks_exact(4)
            .skip(index)
            .map(|bytes| fields::get::<u32>(bytes, 0));
        let first = numbers.next().unwrap_or(0);
        if first == 0 {
            let more = saturate32(numbers.take_while(|&number| number == 0).count());
            return Ok(Mapping::hole(1 + more));
        }
        let more = saturate32(
            numbers
                .zip(1u32..)
                .take_while(|&(number, step)| first.checked_add(step) == Some(number))
                .count(),
        );
        if u64::from(first) + u64::from(more) >= self.geometry.blocks_count {
            return Err(Place::Inode(ino).corrupt("a block past the filesystem's end"));
        }
        Ok(Mapping {
            length: 1 + more,
            physical: Some(first.into()),
            unwritten: false,
        })
    }
}
