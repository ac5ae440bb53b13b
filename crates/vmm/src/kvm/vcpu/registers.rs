//! Sets the initial state of processors.

use kvm_bindings::{
    Msrs, kvm_fpu, kvm_lapic_state, kvm_msr_entry, kvm_regs, kvm_segment, kvm_sregs,
};
use kvm_ioctls::VcpuFd;

use crate::kvm::boot::Entry;
use crate::kvm::memory::layout;

type Result<T> = std::result::Result<T, kvm_ioctls::Error>;

const CR0_PROTECTED: u64 = 1;
const CR0_EXTENSION_TYPE: u64 = 1 << 4;
const CR0_PAGING: u64 = 1 << 31;
const CR4_PHYSICAL_ADDRESS_EXTENSION: u64 = 1 << 5;
const EFER_LONG_MODE: u64 = 1 << 8 | 1 << 10;

/// Sets the initial state that all processors have, and with `entry` that of the first processor,
/// which starts the others.
pub(crate) fn set_up(vcpu: &VcpuFd, entry: Option<&Entry>) -> Result<()> {
    vcpu.set_msrs(&msrs()?)?;
    vcpu.set_fpu(&kvm_fpu {
        fcw: 0x37f,
        mxcsr: 0x1f80,
        ..Default::default()
    })?;
    let mut lapic = vcpu.get_lapic()?;
    set_local_vectors(&mut lapic);
    vcpu.set_lapic(&lapic)?;
    let Some(entry) = entry else {
        return Ok(());
    };
    let mut sregs = vcpu.get_sregs()?;
    let regs = match entry {
        Entry::Pvh { address } => {
            protected_mode(&mut sregs);
            kvm_regs {
                rip: *address,
                rbx: layout::START_INFO,
                rflags: 2,
                ..Default::default()
            }
        }
        Entry::Linux64 { address } => {
            long_mode(&mut sregs);
            kvm_regs {
                rip: *address,
                rsi: layout::ZERO_PAGE,
                rflags: 2,
                ..Default::default()
            }
        }
    };
    vcpu.set_sregs(&sregs)?;
    vcpu.set_regs(&regs)
}

/// Returns the initial model-specific registers: memory is cached by default, and string
/// instructions are fast.
fn msrs() -> Result<Msrs> {
    const MISC_ENABLE: u32 = 0x1a0;
    const MTRR_DEFAULT_TYPE: u32 = 0x2ff;
    const FAST_STRINGS: u64 = 1;
    const ENABLED: u64 = 1 << 11;
    const WRITE_BACK: u64 = 6;
    let entry = |index, data| kvm_msr_entry {
        index,
        data,
        ..Default::default()
    };
    Msrs::from_entries(&[
        entry(MISC_ENABLE, FAST_STRINGS),
        entry(MTRR_DEFAULT_TYPE, ENABLED | WRITE_BACK),
    ])
    .map_err(|_| kvm_ioctls::Error::new(libc::ENOMEM))
}

/// Sets local interrupts as a PC's BIOS does: pin 0 passes on the interrupts of the legacy
/// controller, pin 1 is the non-maskable interrupt.
fn set_local_vectors(lapic: &mut kvm_lapic_state) {
    const PINS: [(usize, u32); 2] = [(0x350, 7 << 8), (0x360, 4 << 8)];
    for (offset, mode) in PINS {
        let bytes = lapic.regs.iter_mut().skip(offset);
        for (register, byte) in bytes.zip(mode.to_le_bytes()) {
            *register = byte.cast_signed();
        }
    }
}

/// Returns a flat segment of all 4 GiB.
fn flat(selector: u16, kind: u8) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_: kind,
        present: 1,
        s: 1,
        g: 1,
        db: 1,
        ..Default::default()
    }
}

const CODE: u8 = 11;
const DATA: u8 = 3;

/// Sets 32-bit protected mode without paging, as PVH requires.
fn protected_mode(sregs: &mut kvm_sregs) {
    sregs.cs = flat(0x10, CODE);
    set_data(sregs);
    sregs.cr0 = CR0_PROTECTED | CR0_EXTENSION_TYPE;
    sregs.cr4 = 0;
    sregs.efer = 0;
}

/// Sets 64-bit mode with the low 4 GiB mapped one to one, as Linux's boot protocol requires.
fn long_mode(sregs: &mut kvm_sregs) {
    sregs.cs = kvm_segment {
        db: 0,
        l: 1,
        ..flat(0x10, CODE)
    };
    set_data(sregs);
    sregs.gdt.base = layout::GDT;
    sregs.gdt.limit = 4 * 8 - 1;
    sregs.idt.limit = 0;
    sregs.cr3 = layout::PAGE_TABLES;
    sregs.cr4 = CR4_PHYSICAL_ADDRESS_EXTENSION;
    sregs.cr0 = CR0_PROTECTED | CR0_EXTENSION_TYPE | CR0_PAGING;
    sregs.efer = EFER_LONG_MODE;
}

fn set_data(sregs: &mut kvm_sregs) {
    let data = flat(0x18, DATA);
    sregs.ds = data;
    sregs.es = data;
    sregs.fs = data;
    sregs.gs = data;
    sregs.ss = data;
    // A busy 32-bit task state segment: the hardware requires one.
    sregs.tr = kvm_segment {
        limit: 0x67,
        type_: 11,
        present: 1,
        ..Default::default()
    };
}
