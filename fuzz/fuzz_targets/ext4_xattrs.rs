//! An ext4 filesystem with arbitrary extended attributes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| micabox_fuzz::ext4::xattrs(data));
