//! An ext4 filesystem with arbitrary directory blocks.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| micabox_fuzz::ext4::directory(data));
