//! An EROFS image of arbitrary bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| micabox_fuzz::erofs::image(data));
