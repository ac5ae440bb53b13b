//! Access control lists.

#![no_main]

use micabox_fuzz::share;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(share::lists()),
    |data: &[u8]| share::list(data)
);
