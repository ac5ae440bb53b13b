//! Requests of clients of `mica store serve`.

#![no_main]

use micabox_fuzz::requests;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(requests::seeds()),
    |data: &[u8]| requests::request(data)
);
