//! What a worker sends of an archive.

#![no_main]

use micabox_fuzz::loaded;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(loaded::seeds()),
    |data: &[u8]| loaded::sent(data)
);
