//! A virtio device with a hostile driver: the first byte chooses the device.

#![no_main]

use micabox_vmm::kvm::fuzzing;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((kind, script)) = data.split_first() {
        fuzzing::drive(*kind, script);
    }
});
