//! A guest's query and a resolver's response.

#![no_main]

use micabox_fuzz::dns;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(dns::seeds()),
    |data: &[u8]| dns::messages(data)
);
