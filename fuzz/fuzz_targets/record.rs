//! The record of a sandbox or a snapshot.

#![no_main]

use micabox_fuzz::snapshot;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(snapshot::records()),
    |data: &[u8]| snapshot::record(data)
);
