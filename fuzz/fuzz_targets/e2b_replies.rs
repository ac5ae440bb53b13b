//! Replies of an interpreter in a sandbox.

#![no_main]

use micabox_fuzz::e2b;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(e2b::said()),
    |data: &[u8]| e2b::replies(data)
);
