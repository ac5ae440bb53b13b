//! An ext4 filesystem with an arbitrary journal to replay.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(micabox_fuzz::ext4_seeds("ext4_journal")),
    |data: &[u8]| micabox_fuzz::ext4::journal(data)
);
