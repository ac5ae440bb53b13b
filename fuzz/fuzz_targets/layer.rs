//! An archive that becomes a layer, and an archive again.

#![no_main]

use micabox_fuzz::archive;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(archive::seeds()),
    |data: &[u8]| archive::layer(data)
);
