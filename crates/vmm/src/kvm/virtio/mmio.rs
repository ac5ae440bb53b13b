//! The MMIO transport: the registers of a device (specification section 4.2).

use std::time::Duration;

use event_manager::{EventOps, Events, MutEventSubscriber};
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FAILED, VIRTIO_CONFIG_S_FEATURES_OK,
    VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_mmio as register;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::QueueT;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::EventFd;

use super::{Active, Device, Interrupt, Queue, Queues, Violation};
use crate::kvm::bus::Mmio;
use crate::kvm::memory::GuestMemory;
use serde::{Deserialize, Serialize};

/// "virt", little endian.
const MAGIC: u32 = 0x7472_6976;

/// The only version that is not legacy.
const VERSION: u32 = 2;

/// A vendor of our choice: "MICA", little endian.
const VENDOR: u32 = u32::from_le_bytes(*b"MICA");

/// Features that every device offers.
const COMMON_FEATURES: u64 =
    1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX | 1 << VIRTIO_RING_F_INDIRECT_DESC;

/// The event of [`Device::source`]; other events are queues' numbers.
const HOST: u32 = u32::MAX;

/// A device behind its registers.
pub(crate) struct Transport {
    pub(super) device: Box<dyn Device>,
    pub(super) memory: GuestMemory,
    pub(super) interrupt: Interrupt,
    /// Written by KVM when the driver notifies a queue.
    pub(super) notifications: Vec<EventFd>,
    pub(super) registers: Registers,
    /// Queues, as far as the driver has set them up.
    pub(super) queues: Vec<virtio_queue::Queue>,
    pub(super) active: Option<Active>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Registers {
    status: u32,
    device_features_select: u32,
    driver_features_select: u32,
    pub(super) driver_features: u64,
    queue_select: u32,
}

impl Transport {
    /// Creates the registers for `device`.
    ///
    /// # Errors
    /// If the host is out of descriptors.
    pub(crate) fn new(device: Box<dyn Device>, memory: GuestMemory) -> std::io::Result<Self> {
        let sizes = device.queue_sizes();
        let queues = sizes
            .iter()
            .map(|size| virtio_queue::Queue::new(*size))
            .collect::<Result<Vec<_>, _>>()
            .map_err(std::io::Error::other)?;
        let notifications = sizes
            .iter()
            .map(|_| EventFd::new(libc::EFD_NONBLOCK))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            device,
            memory,
            interrupt: Interrupt::new(EventFd::new(libc::EFD_NONBLOCK)?),
            notifications,
            registers: Registers::default(),
            queues,
            active: None,
        })
    }

    /// Returns the queues and the events that KVM writes when the driver notifies them, without
    /// queues that a processor's thread processes itself.
    pub(crate) fn notifications(&self) -> impl Iterator<Item = (&EventFd, u32)> {
        let all = self.notifications.iter().zip(0..);
        all.filter(|(_, queue)| !self.device.is_awaited(*queue as usize))
    }

    /// [`Device::is_slow`].
    pub(crate) fn is_slow(&self) -> bool {
        self.device.is_slow()
    }

    /// [`Device::stalled`].
    pub(crate) fn stalled(&mut self) -> Option<Duration> {
        self.device.stalled()
    }

    pub(crate) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    fn features(&self) -> u64 {
        COMMON_FEATURES | self.device.features()
    }

    fn register(&self, offset: u32) -> u32 {
        let registers = &self.registers;
        let queue = self.queues.get(registers.queue_select as usize);
        match offset {
            register::VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            register::VIRTIO_MMIO_VERSION => VERSION,
            register::VIRTIO_MMIO_DEVICE_ID => self.device.id(),
            register::VIRTIO_MMIO_VENDOR_ID => VENDOR,
            register::VIRTIO_MMIO_DEVICE_FEATURES => {
                half(self.features(), registers.device_features_select)
            }
            register::VIRTIO_MMIO_QUEUE_NUM_MAX => queue.map_or(0, |queue| queue.max_size().into()),
            register::VIRTIO_MMIO_QUEUE_READY => queue.map_or(0, |queue| queue.ready().into()),
            register::VIRTIO_MMIO_INTERRUPT_STATUS => self.interrupt.status(),
            register::VIRTIO_MMIO_STATUS => registers.status,
            // No shared memory: every region's length and address read as all ones.
            register::VIRTIO_MMIO_SHM_LEN_LOW
            | register::VIRTIO_MMIO_SHM_LEN_HIGH
            | register::VIRTIO_MMIO_SHM_BASE_LOW
            | register::VIRTIO_MMIO_SHM_BASE_HIGH => u32::MAX,
            // Other registers read as 0, for example the configuration's generation, since
            // configurations don't change.
            _ => 0,
        }
    }

    fn set_register(&mut self, offset: u32, value: u32) {
        match offset {
            register::VIRTIO_MMIO_DEVICE_FEATURES_SEL => {
                self.registers.device_features_select = value;
            }
            register::VIRTIO_MMIO_DRIVER_FEATURES_SEL => {
                self.registers.driver_features_select = value;
            }
            register::VIRTIO_MMIO_DRIVER_FEATURES if !self.has(VIRTIO_CONFIG_S_FEATURES_OK) => {
                let features = &mut self.registers.driver_features;
                match self.registers.driver_features_select {
                    0 => *features = *features & !0xffff_ffff | u64::from(value),
                    1 => *features = *features & 0xffff_ffff | u64::from(value) << 32,
                    _ => {}
                }
            }
            register::VIRTIO_MMIO_QUEUE_SEL => self.registers.queue_select = value,
            register::VIRTIO_MMIO_INTERRUPT_ACK => self.interrupt.acknowledge(value),
            register::VIRTIO_MMIO_STATUS => self.set_status(value),
            register::VIRTIO_MMIO_QUEUE_NOTIFY => self.queue_notified(value as usize),
            _ => self.set_up_queue(offset, value),
        }
    }

    fn set_up_queue(&mut self, offset: u32, value: u32) {
        // After the driver has set DRIVER_OK, queues can't be changed.
        if self.active.is_some() {
            return;
        }
        let Some(queue) = self.queues.get_mut(self.registers.queue_select as usize) else {
            return;
        };
        match offset {
            register::VIRTIO_MMIO_QUEUE_NUM => {
                queue.set_size(u16::try_from(value).unwrap_or_default());
            }
            register::VIRTIO_MMIO_QUEUE_READY => queue.set_ready(value == 1),
            register::VIRTIO_MMIO_QUEUE_DESC_LOW => queue.set_desc_table_address(Some(value), None),
            register::VIRTIO_MMIO_QUEUE_DESC_HIGH => {
                queue.set_desc_table_address(None, Some(value));
            }
            register::VIRTIO_MMIO_QUEUE_AVAIL_LOW => {
                queue.set_avail_ring_address(Some(value), None)
            }
            register::VIRTIO_MMIO_QUEUE_AVAIL_HIGH => {
                queue.set_avail_ring_address(None, Some(value));
            }
            register::VIRTIO_MMIO_QUEUE_USED_LOW => queue.set_used_ring_address(Some(value), None),
            register::VIRTIO_MMIO_QUEUE_USED_HIGH => queue.set_used_ring_address(None, Some(value)),
            _ => {}
        }
    }

    fn has(&self, status: u32) -> bool {
        self.registers.status & status != 0
    }

    fn set_status(&mut self, value: u32) {
        if value == 0 {
            self.reset();
            return;
        }
        // A driver can only set bits of the status, and can't clear the device's own bit.
        let mut status = self.registers.status | value & !VIRTIO_CONFIG_S_NEEDS_RESET;
        let features = self.registers.driver_features;
        let required = 1 << VIRTIO_F_VERSION_1 | self.device.required_features();
        let acceptable = features & !self.features() == 0 && features & required == required;
        if !acceptable {
            status &= !VIRTIO_CONFIG_S_FEATURES_OK;
        }
        self.registers.status = status;
        let ready = VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK;
        let hindered = VIRTIO_CONFIG_S_FAILED | VIRTIO_CONFIG_S_NEEDS_RESET;
        if status & ready == ready && status & hindered == 0 && self.active.is_none() {
            self.activate();
        }
    }

    fn activate(&mut self) {
        let features = self.registers.driver_features;
        let event_index = features >> VIRTIO_RING_F_EVENT_IDX & 1 == 1;
        let queues = self.queues.iter().map(|queue| {
            if queue.ready() {
                Queue::new(queue.state(), event_index, &self.memory).map(Some)
            } else {
                Ok(None)
            }
        });
        match queues.collect::<Result<_, _>>() {
            Ok(queues) => {
                self.active = Some(Active {
                    queues: Queues(queues),
                    memory: self.memory.clone(),
                    interrupt: self.interrupt.clone(),
                });
                self.device.activate(features);
                self.process_pending();
            }
            Err(violation) => self.stop(violation),
        }
    }

    /// Makes the device process all that is already pending.
    pub(crate) fn process_pending(&self) {
        for notification in &self.notifications {
            let _ = notification.write(1);
        }
    }

    fn reset(&mut self) {
        self.with_active(|device, active| device.finish(active));
        self.active = None;
        self.device.reset();
        self.registers = Registers::default();
        self.interrupt.acknowledge(u32::MAX);
        for queue in &mut self.queues {
            queue.reset();
        }
    }

    /// Stops the device after a violation of the protocol, until the driver resets it.
    fn stop(&mut self, violation: Violation) {
        self.active = None;
        self.registers.status |= VIRTIO_CONFIG_S_NEEDS_RESET;
        self.interrupt.config_changed();
        eprintln!(
            "virtio device {} stopped, its driver uses {violation}",
            self.device.id()
        );
    }

    fn with_active(
        &mut self,
        call: impl FnOnce(&mut dyn Device, &mut Active) -> Result<(), Violation>,
    ) {
        if let Some(active) = &mut self.active
            && let Err(violation) = call(&mut *self.device, active)
        {
            self.stop(violation);
        }
    }

    /// Handles the driver's notification of queue `index`.
    fn queue_notified(&mut self, index: usize) {
        self.with_active(|device, active| {
            if active.queues.has(index) {
                device.queue(index, active)
            } else {
                Ok(())
            }
        });
    }
}

impl Mmio for Transport {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        match offset.checked_sub(u64::from(register::VIRTIO_MMIO_CONFIG)) {
            Some(offset) => {
                let config = usize::try_from(offset)
                    .ok()
                    .and_then(|offset| self.device.config().get(offset..));
                for (to, from) in data.iter_mut().zip(config.unwrap_or_default()) {
                    *to = *from;
                }
            }
            None => {
                if let (Ok(offset), 4) = (u32::try_from(offset), data.len()) {
                    data.copy_from_slice(&self.register(offset).to_le_bytes());
                }
            }
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        match offset.checked_sub(u64::from(register::VIRTIO_MMIO_CONFIG)) {
            Some(offset) => self.device.write_config(offset, data),
            None => {
                if let (Ok(offset), Ok(value)) = (u32::try_from(offset), data.try_into()) {
                    self.set_register(offset, u32::from_le_bytes(value));
                }
            }
        }
    }
}

impl MutEventSubscriber for Transport {
    fn init(&mut self, ops: &mut EventOps<'_>) {
        let queues = self.notifications.iter().zip(0..);
        let events = queues
            .map(|(event, index)| Events::with_data(event, index, EventSet::IN))
            .chain(
                self.device
                    .source()
                    .map(|(source, events)| Events::with_data_raw(source, HOST, events)),
            );
        for event in events {
            if let Err(error) = ops.add(event) {
                eprintln!("virtio device {}: {error}", self.device.id());
            }
        }
    }

    fn process(&mut self, events: Events, _ops: &mut EventOps<'_>) {
        match events.data() {
            HOST => self.with_active(|device, active| device.host(active)),
            index => {
                if let Some(notification) = self.notifications.get(index as usize) {
                    let _ = notification.read();
                }
                self.queue_notified(index as usize);
            }
        }
    }
}

/// Returns the low or high half of a 64-bit register.
fn half(value: u64, select: u32) -> u32 {
    let value = match select {
        0 => value,
        1 => value >> 32,
        _ => 0,
    };
    (value & 0xffff_ffff) as u32
}
