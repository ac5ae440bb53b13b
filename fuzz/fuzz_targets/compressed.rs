//! A compressed blob.

#![no_main]

use micabox_fuzz::compressed;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(compressed::seeds()),
    |data: &[u8]| compressed::blob(data)
);
