//! Checks that the tests beside this one run on a KVM that executes ordinary code.

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit};
use libtest_mimic::Failed;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// `mov al, 'm'; out 0x10, al; hlt`
const PROGRAM: [u8; 5] = [0xb0, b'm', 0xe6, 0x10, 0xf4];
const START: u64 = 0x1000;

pub fn executes() -> Result<(), Failed> {
    let kvm = Kvm::new().expect("/dev/kvm opens");
    let machine = kvm.create_vm().unwrap();
    let memory: GuestMemoryMmap =
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
    memory.write_slice(&PROGRAM, GuestAddress(START)).unwrap();
    let region = kvm_userspace_memory_region {
        memory_size: 0x10000,
        userspace_addr: memory.get_host_address(GuestAddress(0)).unwrap() as u64,
        ..Default::default()
    };
    // SAFETY: `memory` outlives the machine, which is dropped at the end of this function.
    unsafe { machine.set_user_memory_region(region) }.unwrap();

    let mut processor = machine.create_vcpu(0).unwrap();
    let mut segments = processor.get_sregs().unwrap();
    segments.cs.base = 0;
    segments.cs.selector = 0;
    processor.set_sregs(&segments).unwrap();
    let mut registers = processor.get_regs().unwrap();
    registers.rip = START;
    registers.rflags = 2;
    processor.set_regs(&registers).unwrap();

    match processor.run().unwrap() {
        VcpuExit::IoOut(0x10, data) => assert_eq!(data, b"m"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(processor.run().unwrap(), VcpuExit::Hlt));
    Ok(())
}
