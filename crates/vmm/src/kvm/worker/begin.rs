//! Begins a machine: boots a kernel, or restores a saved machine.

use std::fs::File;

use kvm_bindings::CpuId;
use kvm_ioctls::{VcpuFd, VmFd};
use micabox_ground::lock;

use super::machine::{Error, kvm, system};
use crate::kvm::boot;
use crate::kvm::bus::Bus;
use crate::kvm::legacy::{Cmos, serial};
use crate::kvm::memory::delta::Delta;
use crate::kvm::memory::{GuestMemory, touched};
use crate::kvm::saved::{self, Saved};
use crate::kvm::vcpu::registers;
use crate::kvm::vmgenid;
use crate::kvm::worker_spec::{Start, own};

/// How a machine begins.
pub(super) enum Begin {
    Boot {
        kernel: File,
        initrd: File,
        command_line: String,
    },
    Resume {
        saved: Box<Saved>,
        /// The memory's file, and what differs from it, until they are mapped.
        memory: Option<(File, Option<Delta>)>,
        /// The list of the pages that the machine will write to first.
        touched: Option<File>,
    },
}

impl Begin {
    pub(super) fn new(start: Start, ram_size: u64) -> Result<Self, Error> {
        let take = |descriptor| {
            let file = own(descriptor).map_err(system("taking a descriptor"));
            file.map(File::from)
        };
        match start {
            Start::Boot {
                kernel,
                initrd,
                command_line,
            } => Ok(Self::Boot {
                kernel: take(kernel)?,
                initrd: take(initrd)?,
                command_line,
            }),
            Start::Resume {
                state,
                memory,
                base,
                touched,
            } => {
                let touched = touched.map(&take).transpose()?;
                let memory = take(memory)?;
                let saved = Saved::read(&take(state)?)?;
                if u64::from(saved.memory_mib) << 20 != ram_size {
                    return Err(saved::Error::Machine("its memory is of another size").into());
                }
                let read = saved::Error::Read;
                let memory = match base {
                    None => (memory, None),
                    Some(base) => {
                        let delta = Delta::read(memory, ram_size).map_err(read)?;
                        let delta = delta.ok_or(saved::Error::Damaged)?;
                        (take(base)?, Some(delta))
                    }
                };
                if memory.0.metadata().map_err(read)?.len() != ram_size {
                    return Err(saved::Error::Damaged.into());
                }
                Ok(Self::Resume {
                    saved: Box::new(saved),
                    memory: Some(memory),
                    touched,
                })
            }
        }
    }

    /// Creates the machine's RAM. Can be called once.
    pub(super) fn memory(&mut self, size: u64) -> Result<GuestMemory, Error> {
        let files = match self {
            Self::Boot { .. } => None,
            Self::Resume { memory, .. } => memory.take(),
        };
        Ok(match files {
            None => GuestMemory::new(size)?,
            Some((file, delta)) => GuestMemory::resumed(size, file, delta)?,
        })
    }

    pub(super) fn serial(&self) -> Option<serial::State> {
        match self {
            Self::Boot { .. } => None,
            Self::Resume { saved, .. } => Some(saved.serial),
        }
    }

    pub(super) fn cmos(&self) -> Cmos {
        match self {
            Self::Boot { .. } => Cmos::default(),
            Self::Resume { saved, .. } => saved.cmos.clone(),
        }
    }

    /// Creates the processors with these `features` as CPUID, and sets or restores the machine's
    /// initial state.
    pub(super) fn processors(
        self,
        vm: &VmFd,
        features: &[CpuId],
        memory: &GuestMemory,
        ram_size: u64,
        acpi: &[u8],
        bus: &Bus,
    ) -> Result<Vec<VcpuFd>, Error> {
        let vcpus: Vec<VcpuFd> = (0..)
            .zip(features)
            .map(|(id, features)| {
                let vcpu = vm.create_vcpu(id).map_err(kvm("creating a processor"))?;
                vcpu.set_cpuid2(features)
                    .map_err(kvm("describing a processor"))?;
                Ok(vcpu)
            })
            .collect::<Result<_, Error>>()?;
        match self {
            Self::Boot {
                mut kernel,
                mut initrd,
                command_line,
            } => {
                let ram = memory.ram();
                let entry =
                    boot::prepare(ram, ram_size, &mut kernel, &mut initrd, &command_line, acpi)?;
                vmgenid::renew(memory).map_err(system("numbering the machine"))?;
                for (vcpu, index) in vcpus.iter().zip(0..) {
                    let first = (index == 0).then_some(&entry);
                    registers::set_up(vcpu, first)
                        .map_err(kvm("setting a processor's registers"))?;
                }
            }
            Self::Resume { saved, touched, .. } => {
                resume(*saved, vm, features, &vcpus, memory, bus)?;
                if let Some((list, first)) = touched.as_ref().zip(vcpus.first()) {
                    let map = |address, length| touched::map(first, address, length);
                    touched::prepare(memory.ram(), list, map)
                        .map_err(system("preparing the machine's memory"))?;
                }
            }
        }
        Ok(vcpus)
    }
}

/// Restores the machine's state: processors first, then the interrupt controllers, then the devices
/// that raise interrupts.
fn resume(
    saved: Saved,
    vm: &VmFd,
    features: &[CpuId],
    vcpus: &[VcpuFd],
    memory: &GuestMemory,
    bus: &Bus,
) -> Result<(), Error> {
    if saved.processors.len() != vcpus.len() {
        return Err(saved::Error::Machine("it has another number of processors").into());
    }
    if saved.devices.len() != bus.virtio.len() {
        return Err(saved::Error::Machine("it has other devices").into());
    }
    if let Some(first) = features.first() {
        saved.check_processor(first)?;
    }
    let refused = |error: &dyn std::fmt::Display| saved::Error::Refused(error.to_string());
    for (state, vcpu) in saved.processors.iter().zip(vcpus) {
        state.give_to(vcpu).map_err(|error| refused(&error))?;
    }
    saved
        .controllers
        .give_to(vm)
        .map_err(|error| refused(&error))?;
    for (state, device) in saved.devices.into_iter().zip(&bus.virtio) {
        lock(&device.transport)
            .resume(state)
            .map_err(|error| refused(&error))?;
    }
    // From here on it is a different machine, which its kernel must notice.
    vmgenid::renew(memory).map_err(system("numbering the machine"))?;
    for level in [true, false] {
        vm.set_irq_line(vmgenid::INTERRUPT, level)
            .map_err(kvm("telling the kernel that it is a copy"))?;
    }
    Ok(())
}
