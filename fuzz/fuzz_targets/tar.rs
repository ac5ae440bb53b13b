//! An archive, member by member.

#![no_main]

use micabox_fuzz::archive;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(archive::seeds()),
    |data: &[u8]| archive::tar(data)
);
