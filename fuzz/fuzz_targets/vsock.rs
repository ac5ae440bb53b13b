//! Packets of a guest's sockets, in valid descriptor chains.

#![no_main]

use micabox_vmm::kvm::fuzzing;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(fuzzing::conversations()),
    |data: &[u8]| fuzzing::talk(data)
);
