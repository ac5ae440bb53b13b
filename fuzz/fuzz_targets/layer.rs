//! An archive that is converted to a layer and rebuilt.

#![no_main]

use micabox_fuzz::archive;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(archive::seeds()),
    |data: &[u8]| archive::layer(data)
);
