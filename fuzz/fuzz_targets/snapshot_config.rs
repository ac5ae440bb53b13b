//! The config of a snapshot in a registry.

#![no_main]

use micabox_fuzz::snapshot;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(snapshot::config_seeds()),
    |data: &[u8]| snapshot::config(data)
);
