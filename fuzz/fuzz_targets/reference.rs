//! An image reference.

#![no_main]

use micabox_fuzz::documents;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(documents::names()),
    |data: &[u8]| documents::reference(data)
);
