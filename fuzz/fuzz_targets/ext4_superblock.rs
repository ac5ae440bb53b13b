//! An ext4 filesystem with an arbitrary superblock.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| micabox_fuzz::ext4::superblock(data));
