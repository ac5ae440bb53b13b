//! A virtio device with a driver that means harm: the first byte chooses the device.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((kind, script)) = data.split_first() {
        micabox_vmm::kvm::fuzz(*kind, script);
    }
});
