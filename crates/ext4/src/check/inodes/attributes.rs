//! Checks an inode's extended attributes.

use crate::check::inode::Inode;
use crate::check::state::{Shared, State};
use crate::check::volume::buffer;
use crate::check::xattrs::{self, Facts};
use crate::format::features::compat;
use crate::format::inode::flags;

/// Checks an inode's attributes. Returns the number of blocks that hold some.
pub(super) fn check(state: &mut State, inode: &Inode, facts: &mut Facts) -> u64 {
    let volume = state.volume;
    let number = inode.number;
    if inode.extra_size_fits()
        && let Err(problem) = xattrs::in_inode(volume, inode, facts)
    {
        state.found.inode(
            number,
            format_args!("extended attribute is corrupt: {problem}"),
        );
    }
    let blocks = in_block(state, inode, facts);
    if inode.has(flags::ENCRYPT) {
        if facts.encryption.is_none() {
            let what = "has encrypt flag but no encryption extended attribute";
            state.found.inode(number, what);
        } else if !facts.is_encryption_sound() {
            state
                .found
                .inode(number, "has corrupt encryption extended attribute");
        }
    }
    for &(value, _) in &facts.value_inodes {
        *state.value_inodes.entry(value).or_default() += 1;
    }
    blocks
}

/// Checks the block with an inode's attributes. Returns the number of such blocks: one, or none.
pub(super) fn in_block(state: &mut State, inode: &Inode, facts: &mut Facts) -> u64 {
    let volume = state.volume;
    let number = inode.number;
    let mut blocks = 0;
    let block = inode.attribute_block(volume);
    if block != 0 {
        if !volume.superblock.has_compat(compat::EXT_ATTR) {
            state.found.inode(
                number,
                format_args!("i_file_acl is {block}, should be zero"),
            );
        } else if !volume.is_data_block(block) || state.is_fixed(block) {
            state.found.inode(
                number,
                format_args!("extended attribute block is invalid ({block})"),
            );
        } else {
            attribute_block(state, inode, block, facts);
            blocks = 1;
        }
    }
    blocks
}

/// Checks a block of attributes, only once.
fn attribute_block(state: &mut State, inode: &Inode, block: u64, facts: &mut Facts) {
    if let Some(shared) = state.attribute_blocks.get_mut(&block) {
        shared.counted = shared.counted.saturating_add(1);
        return;
    }
    let volume = state.volume;
    let mut bytes = buffer(volume);
    let checked = volume
        .read_block(block, &mut bytes)
        .and_then(|()| xattrs::in_block(volume, block, &bytes, facts));
    let claimed = checked
        .inspect_err(|problem| {
            let what = format_args!("extended attribute block {block} is corrupt: {problem}");
            state.found.inode(inode.number, what);
        })
        .ok();
    let shared = Shared {
        claimed,
        counted: 1,
    };
    state.attribute_blocks.insert(block, shared);
    let clusters = state.clusters(block..block + 1);
    state.claims.add(clusters, inode.number);
}
