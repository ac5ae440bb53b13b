//! Parts of bodies of E2B's clients.

#![no_main]

use micabox_fuzz::e2b;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(e2b::bodies()),
    |data: &[u8]| e2b::parts(data)
);
