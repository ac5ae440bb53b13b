//! The state of a saved machine, as a worker reads it.

#![no_main]

use micabox_vmm::kvm::fuzzing;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant([("sample", fuzzing::sample())]),
    |data: &[u8]| fuzzing::saved(data)
);
