//! Indexes, manifests and configs from a registry.

#![no_main]

use micabox_fuzz::documents;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(documents::seeds()),
    |data: &[u8]| documents::manifest(data)
);
