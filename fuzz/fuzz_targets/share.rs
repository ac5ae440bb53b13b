//! Requests of FUSE from a hostile guest.

#![no_main]

use micabox_fuzz::share;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(share::seeds()),
    |data: &[u8]| share::requests(data)
);
