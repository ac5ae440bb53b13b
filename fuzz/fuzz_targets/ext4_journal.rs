//! An ext4 filesystem with an arbitrary journal to replay.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| micabox_fuzz::ext4::journal(data));
