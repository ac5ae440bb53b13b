//! Headers of a registry's responses.

#![no_main]

use micabox_fuzz::headers;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(headers::seeds()),
    |data: &[u8]| headers::header(data)
);
