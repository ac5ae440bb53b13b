//! An EROFS image that is converted to a layer.

#![no_main]

use micabox_fuzz::{archive, erofs_seeds};

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(erofs_seeds::images()),
    |data: &[u8]| {
        archive::native(data);
        archive::device(data);
    }
);
