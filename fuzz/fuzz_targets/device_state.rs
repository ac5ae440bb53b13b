//! A device restored from a saved state: the first byte chooses the device.

#![no_main]

use micabox_vmm::kvm::fuzzing;

libfuzzer_sys::fuzz_target!(
    init: micabox_fuzz::plant(fuzzing::states().into_iter().map(|state| ("state", state))),
    |data: &[u8]| {
        if let Some((kind, script)) = data.split_first() {
            fuzzing::resume(*kind, script);
        }
    }
);
