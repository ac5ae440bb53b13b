//! The whole state of a processor, to restore it in another one.

#![allow(unsafe_code)]

use kvm_bindings::{
    Msrs, kvm_debugregs, kvm_lapic_state, kvm_mp_state, kvm_msr_entry, kvm_regs, kvm_sregs,
    kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::VcpuFd;
use serde::{Deserialize, Serialize};

use super::Error;

/// A processor at one moment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    running: kvm_mp_state,
    registers: kvm_regs,
    system: kvm_sregs,
    vectors: kvm_xsave,
    vector_control: kvm_xcrs,
    debug: kvm_debugregs,
    timer: kvm_lapic_state,
    model: Vec<kvm_msr_entry>,
    events: kvm_vcpu_events,
    /// Frequency of its time stamp counter.
    tsc_khz: u32,
}

/// `IA32_TSC_DEADLINE`: arms the timer. It depends on the counter and the local interrupt
/// controller, so it is restored last.
const TSC_DEADLINE: u32 = 0x6e0;

/// `IA32_DEBUGCTL`, 0 in a new processor. KVM on AMD's processors logs each write where it can't
/// virtualise the record of branches.
const DEBUG_CONTROL: u32 = 0x1d9;

/// Tolerance, in parts of a million, within which the frequency of another time stamp counter
/// counts as the same: kernels measure it that differently.
const TSC_TOLERANCE: u64 = 250;

/// Bits that show that the guest runs virtual machines, whose state is in the processor too:
/// `EFER.SVME` of AMD's, `CR4.VMXE` of Intel's.
const EFER_SVME: u64 = 1 << 12;
const CR4_VMXE: u64 = 1 << 13;

fn ioctl(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> Error {
    move |source| Error { what, source }
}

impl State {
    /// Reads the state of a processor, which must be out of the guest with nothing pending.
    /// `indices` are the model-specific registers that KVM supports.
    pub(crate) fn of(vcpu: &VcpuFd, indices: &[u32]) -> Result<Self, Error> {
        // First: it completes what other processors requested of this one.
        let running = vcpu
            .get_mp_state()
            .map_err(ioctl("asking whether it runs"))?;
        let system = vcpu
            .get_sregs()
            .map_err(ioctl("reading system registers"))?;
        if system.efer & EFER_SVME != 0 || system.cr4 & CR4_VMXE != 0 {
            return Err(Error {
                what: "it runs virtual machines of its own",
                source: kvm_ioctls::Error::new(libc::EOPNOTSUPP),
            });
        }
        Ok(Self {
            running,
            registers: vcpu.get_regs().map_err(ioctl("reading registers"))?,
            system,
            vectors: vcpu
                .get_xsave()
                .map_err(ioctl("reading vector registers"))?,
            vector_control: vcpu.get_xcrs().map_err(ioctl("reading vector control"))?,
            debug: vcpu
                .get_debug_regs()
                .map_err(ioctl("reading debug registers"))?,
            timer: vcpu
                .get_lapic()
                .map_err(ioctl("reading the local interrupt controller"))?,
            model: read_model(vcpu, indices)?,
            events: vcpu.get_vcpu_events().map_err(ioctl("reading events"))?,
            tsc_khz: vcpu.get_tsc_khz().unwrap_or(0),
        })
    }

    /// Restores the state in a new processor, which must already have its CPUID.
    pub(crate) fn give_to(&self, vcpu: &VcpuFd) -> Result<(), Error> {
        self.give_frequency(vcpu)?;
        vcpu.set_mp_state(self.running)
            .map_err(ioctl("setting whether it runs"))?;
        vcpu.set_regs(&self.registers)
            .map_err(ioctl("setting registers"))?;
        vcpu.set_sregs(&self.system)
            .map_err(ioctl("setting system registers"))?;
        // SAFETY: KVM reads 4096 bytes as long as no feature beyond them is enabled for guests of
        // this process, and none is ever enabled.
        unsafe { vcpu.set_xsave(&self.vectors) }.map_err(ioctl("setting vector registers"))?;
        vcpu.set_xcrs(&self.vector_control)
            .map_err(ioctl("setting vector control"))?;
        vcpu.set_debug_regs(&self.debug)
            .map_err(ioctl("setting debug registers"))?;
        vcpu.set_lapic(&self.timer)
            .map_err(ioctl("setting the local interrupt controller"))?;
        let is_last = |entry: &&kvm_msr_entry| entry.index == TSC_DEADLINE;
        let is_default = |entry: &&kvm_msr_entry| entry.index == DEBUG_CONTROL && entry.data == 0;
        let first = self.model.iter();
        let first = first.filter(|entry| !is_last(entry) && !is_default(entry));
        write_model(vcpu, first)?;
        write_model(vcpu, self.model.iter().filter(is_last))?;
        vcpu.set_vcpu_events(&self.events)
            .map_err(ioctl("setting events"))
    }

    /// Sets the counter's frequency, which the guest measured only once.
    fn give_frequency(&self, vcpu: &VcpuFd) -> Result<(), Error> {
        let (wanted, here) = (
            u64::from(self.tsc_khz),
            u64::from(vcpu.get_tsc_khz().unwrap_or(0)),
        );
        let is_same = wanted.abs_diff(here) * 1_000_000 <= wanted * TSC_TOLERANCE;
        if wanted == 0 || is_same {
            return Ok(());
        }
        vcpu.set_tsc_khz(self.tsc_khz)
            .map_err(ioctl("setting the frequency of its time stamp counter"))
    }
}

/// Reads the registers that can be read. KVM stops at the first one that can't: its list contains
/// some that this processor does not have.
fn read_model(vcpu: &VcpuFd, indices: &[u32]) -> Result<Vec<kvm_msr_entry>, Error> {
    let mut found = Vec::with_capacity(indices.len());
    let mut rest = indices;
    while !rest.is_empty() {
        let entries: Vec<_> = rest
            .iter()
            .map(|index| kvm_msr_entry {
                index: *index,
                ..Default::default()
            })
            .collect();
        let mut entries = list(&entries)?;
        let count = vcpu
            .get_msrs(&mut entries)
            .map_err(ioctl("reading model-specific registers"))?;
        found.extend(entries.as_slice().iter().take(count));
        rest = rest.get(count.saturating_add(1)..).unwrap_or_default();
    }
    Ok(found)
}

/// Writes all registers. Some can be read but not written, which does no harm if they already have
/// the right value.
fn write_model<'a>(
    vcpu: &VcpuFd,
    entries: impl Iterator<Item = &'a kvm_msr_entry>,
) -> Result<(), Error> {
    const WHAT: &str = "setting model-specific registers";
    let entries: Vec<kvm_msr_entry> = entries.copied().collect();
    let mut rest = entries.as_slice();
    while !rest.is_empty() {
        let count = vcpu.set_msrs(&list(rest)?).map_err(ioctl(WHAT))?;
        if let Some(refused) = rest.get(count) {
            let current = read_model(vcpu, &[refused.index])?;
            if current.first().is_none_or(|now| now.data != refused.data) {
                return Err(Error {
                    what: WHAT,
                    source: kvm_ioctls::Error::new(libc::EINVAL),
                });
            }
        }
        rest = rest.get(count.saturating_add(1)..).unwrap_or_default();
    }
    Ok(())
}

fn list(entries: &[kvm_msr_entry]) -> Result<Msrs, Error> {
    Msrs::from_entries(entries).map_err(|_| Error {
        what: "listing model-specific registers",
        source: kvm_ioctls::Error::new(libc::ENOMEM),
    })
}
