//! Encodes the superblock and the device table that follows it.

use super::Written;
use crate::BLOCK_SIZE;
use crate::format::{
    self, COMPAT_CHECKSUM, COMPAT_MTIME, DEVICE_SLOT_SIZE, DeviceSlot, INCOMPAT_CHUNKED,
    INCOMPAT_DEVICE_TABLE, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock,
};
use micabox_file::narrow::{in_memory, saturate16};

const DEVICE_TABLE: u64 = SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64;

/// Returns how many blocks at the start of an image hold the superblock and `devices` slots.
pub(crate) fn blocks(devices: usize) -> u64 {
    (DEVICE_TABLE + (devices * DEVICE_SLOT_SIZE) as u64).div_ceil(BLOCK_SIZE)
}

/// Encodes all bytes from [`SUPERBLOCK_OFFSET`] to the end of the head's last block.
pub(crate) fn head(
    metadata: &Written,
    image_blocks: u32,
    uuid: [u8; 16],
    devices: &[DeviceSlot],
) -> Vec<u8> {
    let mut feature_incompat = 0;
    if metadata.chunked {
        feature_incompat |= INCOMPAT_CHUNKED;
    }
    if !devices.is_empty() {
        feature_incompat |= INCOMPAT_DEVICE_TABLE;
    }
    let superblock = Superblock {
        feature_compat: COMPAT_CHECKSUM | COMPAT_MTIME,
        feature_incompat,
        root_nid: metadata.root_nid,
        inodes: metadata.inodes,
        build_time: metadata.build_time,
        blocks: image_blocks,
        meta_block: metadata.meta_block,
        xattr_block: metadata.xattr_block,
        uuid,
        compression: 0,
        packed_nid: 0,
        prefixes: 0,
        prefixes_at: 0,
        devices: saturate16(devices.len()),
        device_table: match devices {
            [] => 0,
            _ => saturate16(DEVICE_TABLE / DEVICE_SLOT_SIZE as u64),
        },
    };
    let mut head = superblock.encode(0).to_vec();
    for device in devices {
        head.extend_from_slice(&device.encode());
    }
    head.resize(
        in_memory(blocks(devices.len()) * BLOCK_SIZE - SUPERBLOCK_OFFSET),
        0,
    );

    let checksum = format::checksum(&head[..in_memory(BLOCK_SIZE - SUPERBLOCK_OFFSET)]);
    head[..SUPERBLOCK_SIZE].copy_from_slice(&superblock.encode(checksum));
    head
}
