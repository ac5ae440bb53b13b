//! The steps of a recipe, which rebuild a layer's archive.

#![no_main]

use micabox_fuzz::recipe;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(recipe::seeds()),
    |data: &[u8]| recipe::steps(data)
);
