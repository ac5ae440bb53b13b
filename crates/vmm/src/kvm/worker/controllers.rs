//! The machine's interrupt controllers and clocks in the kernel.

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_PIT_SPEAKER_DUMMY,
    kvm_clock_data, kvm_irqchip, kvm_pit_config, kvm_pit_state2,
};
use kvm_ioctls::VmFd;
use serde::{Deserialize, Serialize};

use super::machine::{Error, kvm};
use crate::kvm::memory::layout;

/// The state of the interrupt controllers, the legacy timer and the clock at one moment.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Controllers {
    chips: Vec<kvm_irqchip>,
    timer: kvm_pit_state2,
    clock: kvm_clock_data,
}

const CHIPS: [u32; 3] = [
    KVM_IRQCHIP_PIC_MASTER,
    KVM_IRQCHIP_PIC_SLAVE,
    KVM_IRQCHIP_IOAPIC,
];

impl Controllers {
    /// Creates the controllers. Must be called before processors are created.
    pub(super) fn create(vm: &VmFd) -> Result<(), Error> {
        vm.set_identity_map_address(layout::KVM_IDENTITY_MAP)
            .map_err(kvm("setting the identity map's address"))?;
        vm.set_tss_address(layout::KVM_TSS)
            .map_err(kvm("setting the task state segment's address"))?;
        vm.create_irq_chip()
            .map_err(kvm("creating interrupt controllers"))?;
        vm.create_pit2(kvm_pit_config {
            flags: KVM_PIT_SPEAKER_DUMMY,
            ..Default::default()
        })
        .map_err(kvm("creating a timer"))
    }

    /// Reads their state. No processor may run.
    pub(super) fn of(vm: &VmFd) -> Result<Self, Error> {
        let chips = CHIPS.map(|chip_id| {
            let mut chip = kvm_irqchip {
                chip_id,
                ..Default::default()
            };
            vm.get_irqchip(&mut chip)
                .map_err(kvm("reading an interrupt controller"))
                .map(|()| chip)
        });
        Ok(Self {
            chips: chips.into_iter().collect::<Result<_, _>>()?,
            timer: vm.get_pit2().map_err(kvm("reading the timer"))?,
            clock: vm.get_clock().map_err(kvm("reading the clock"))?,
        })
    }

    /// Restores the state in new controllers, after the processors are created.
    pub(super) fn give_to(&self, vm: &VmFd) -> Result<(), Error> {
        for chip in &self.chips {
            vm.set_irqchip(chip)
                .map_err(kvm("setting an interrupt controller"))?;
        }
        vm.set_pit2(&self.timer).map_err(kvm("setting the timer"))?;
        // The guest's uptime continues at the saved value. Its relation to the host's clock is not
        // used.
        let clock = kvm_clock_data {
            clock: self.clock.clock,
            ..Default::default()
        };
        vm.set_clock(&clock).map_err(kvm("setting the clock"))
    }
}
