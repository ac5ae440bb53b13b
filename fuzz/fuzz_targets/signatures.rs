//! Policies and signatures of images.

#![no_main]

use micabox_fuzz::signatures;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(signatures::seeds()),
    |data: &[u8]| signatures::signature(data)
);
