//! An EROFS image of arbitrary bytes.

#![no_main]

use micabox_fuzz::{erofs, erofs_seeds};

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(erofs_seeds::images()),
    |data: &[u8]| erofs::image(data)
);
