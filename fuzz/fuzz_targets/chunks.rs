//! Chunk indexes of EROFS images in registries, and chunks.

#![no_main]

use micabox_fuzz::chunks;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(chunks::seeds()),
    |data: &[u8]| chunks::index(data)
);
