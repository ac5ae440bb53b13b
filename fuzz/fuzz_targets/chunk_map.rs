//! Maps of sparse files, as registries have them.

#![no_main]

use micabox_fuzz::chunks;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(chunks::map_seeds()),
    |data: &[u8]| chunks::map(data)
);
