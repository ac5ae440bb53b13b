//! The head of an exported snapshot.

#![no_main]

use micabox_fuzz::snapshot;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(snapshot::seeds()),
    |data: &[u8]| snapshot::file(data)
);
