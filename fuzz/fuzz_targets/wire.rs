//! The agent's channel.

#![no_main]

use micabox_fuzz::wire;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(wire::seeds()),
    |data: &[u8]| wire::stream(data)
);
