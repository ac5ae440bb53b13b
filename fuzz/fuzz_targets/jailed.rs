//! Replies and records of jailed workers.

#![no_main]

use micabox_fuzz::jailed;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(jailed::seeds()),
    |data: &[u8]| jailed::answers(data)
);
