//! An ext4 filesystem with an arbitrary extent tree.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| micabox_fuzz::ext4::extents(data));
