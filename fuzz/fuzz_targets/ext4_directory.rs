//! An ext4 filesystem with arbitrary directory blocks.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(micabox_fuzz::ext4_seeds("ext4_directory")),
    |data: &[u8]| micabox_fuzz::ext4::directory(data)
);
