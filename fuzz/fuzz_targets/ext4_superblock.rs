//! An ext4 filesystem with an arbitrary superblock.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(micabox_fuzz::ext4_seeds("ext4_superblock")),
    |data: &[u8]| micabox_fuzz::ext4::superblock(data)
);
