//! A disk image of arbitrary bytes.

#![no_main]

use micabox_fuzz::disk;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(disk::seeds()),
    |data: &[u8]| disk::image(data)
);
