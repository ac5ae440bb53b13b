//! Operations on a running sandbox's files.

#![no_main]

use micabox_fuzz::files;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(files::seeds()),
    |data: &[u8]| files::operation(data)
);
