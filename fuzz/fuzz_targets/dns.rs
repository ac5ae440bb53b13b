//! A question of a guest and an answer of a resolver.

#![no_main]

use micabox_fuzz::dns;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(dns::seeds()),
    |data: &[u8]| dns::messages(data)
);
