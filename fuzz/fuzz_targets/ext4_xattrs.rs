//! An ext4 filesystem with arbitrary extended attributes.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(micabox_fuzz::ext4_seeds("ext4_xattrs")),
    |data: &[u8]| micabox_fuzz::ext4::xattrs(data)
);
