//! Checks an inode's size against its blocks.

use crate::check::inode::{Inode, Kind};
use crate::check::map::Map;
use crate::check::state::State;
use crate::check::volume::Volume;
use crate::format::features::incompat;
use crate::format::inode::flags;

/// Checks that `i_size` matches the blocks.
pub(super) fn check(state: &mut State, inode: &Inode, map: &Map, inline: bool) {
    let volume = state.volume;
    let block_size = volume.block_size as u64;
    let size = inode.raw.size();
    let right = match inode.kind() {
        Some(Kind::Directory) if !inline => {
            let most = map.end();
            let blocks = size / block_size;
            let preallocated = u64::from(volume.superblock.prealloc_dir_blocks);
            if size.is_multiple_of(block_size) && blocks <= most && most <= blocks + preallocated {
                return;
            }
            most * block_size
        }
        Some(Kind::Regular) if !inline => {
            // e2fsck accepts one block too many, and mke2fs makes such journals. Verity stores its
            // tree after the data.
            let least = map.written_end();
            let short = size < least.saturating_sub(1) * block_size && !inode.has(flags::VERITY);
            if !short && size <= size_max(volume, inode) {
                return;
            }
            least * block_size
        }
        None if !inline => {
            if size <= size_max(volume, inode) {
                return;
            }
            0
        }
        _ => return,
    };
    let what = format_args!("i_size is {size}, should be {right}");
    state.found.inode(inode.number, what);
}

/// Returns the largest size that a file's map can hold, in bytes.
fn size_max(volume: &Volume, inode: &Inode) -> u64 {
    let block_size = volume.block_size as u64;
    if volume.has_incompat(incompat::EXTENTS) && inode.has(flags::EXTENTS) {
        return (block_size << 32) - 1;
    }
    let numbers = block_size / 4;
    let blocks = 12 + numbers + numbers.pow(2) + numbers.pow(3);
    blocks.saturating_mul(block_size)
}
