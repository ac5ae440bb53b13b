//! The bus: ports and device registers that a processor reaches beside memory.

use std::sync::{Arc, Mutex};

use micabox_ground::lock;
use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_INTERRUPT_ACK, VIRTIO_MMIO_INTERRUPT_STATUS};

use super::ending::Ending;
use super::legacy::{Cmos, Serial, power};
use super::memory::layout;
use super::virtio::Interrupt;
use super::virtio::mmio::Transport;

/// Registers in memory. Offsets without a register read as 0 and ignore writes.
pub(crate) trait Mmio {
    fn read(&mut self, offset: u64, data: &mut [u8]);
    fn write(&mut self, offset: u64, data: &[u8]);
}

/// Everything outside of memory, for all processors.
pub(crate) struct Bus {
    pub(super) serial: Mutex<Serial>,
    pub(super) cmos: Mutex<Cmos>,
    /// In the order of their addresses, from [`layout::VIRTIO`] on.
    pub(super) virtio: Vec<Attached>,
}

/// A virtio device on the bus.
pub(crate) struct Attached {
    /// Outside the device's lock: a processor that handles an interrupt does not wait for the
    /// device.
    interrupt: Interrupt,
    pub(super) transport: Arc<Mutex<Transport>>,
}

impl Attached {
    pub(super) fn new(transport: Transport) -> Self {
        Self {
            interrupt: transport.interrupt().clone(),
            transport: Arc::new(Mutex::new(transport)),
        }
    }

    fn read(&self, offset: u64, data: &mut [u8]) {
        match (offset, &mut *data) {
            (INTERRUPT_STATUS, [_, _, _, _]) => {
                data.copy_from_slice(&self.interrupt.status().to_le_bytes());
            }
            _ => lock(&self.transport).read(offset, data),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        match (offset, data) {
            (INTERRUPT_ACK, [a, b, c, d]) => {
                self.interrupt
                    .acknowledge(u32::from_le_bytes([*a, *b, *c, *d]));
            }
            _ => lock(&self.transport).write(offset, data),
        }
    }
}

const INTERRUPT_STATUS: u64 = VIRTIO_MMIO_INTERRUPT_STATUS as u64;
const INTERRUPT_ACK: u64 = VIRTIO_MMIO_INTERRUPT_ACK as u64;

impl Bus {
    /// Reads from a port for a processor. `data` can be one access, to consecutive ports, or
    /// repeated accesses to the same port. Devices here have byte registers, so only the second
    /// occurs on them.
    pub(crate) fn read_port(&self, port: u16, data: &mut [u8]) {
        // A PC's bus reads as all ones where there is no device.
        data.fill(0xff);
        for byte in data {
            *byte = match port {
                Serial::FIRST_PORT..=Serial::LAST_PORT => {
                    lock(&self.serial).read(port - Serial::FIRST_PORT)
                }
                Cmos::INDEX | Cmos::DATA => lock(&self.cmos).read(port),
                power::KEYBOARD_STATUS | power::SLEEP_STATUS => 0,
                _ => 0xff,
            };
        }
    }

    /// Writes to a port for a processor, with data as in [`Bus::read_port`]. Some writes end the
    /// machine.
    pub(crate) fn write_port(&self, port: u16, data: &[u8]) -> Option<Ending> {
        for byte in data {
            match port {
                Serial::FIRST_PORT..=Serial::LAST_PORT => {
                    lock(&self.serial).write(port - Serial::FIRST_PORT, *byte);
                }
                Cmos::INDEX => lock(&self.cmos).select(*byte),
                _ => {
                    if let Some(ending) = power::write(port, *byte) {
                        return Some(ending);
                    }
                }
            }
        }
        None
    }

    /// Reads at an address without memory for a processor.
    pub(crate) fn read_memory(&self, address: u64, data: &mut [u8]) {
        match self.virtio(address) {
            Some((device, offset)) => device.read(offset, data),
            None => data.fill(0xff),
        }
    }

    /// Writes for a processor at an address without memory, or in a read-only region. Only writes
    /// to device registers have an effect.
    pub(crate) fn write_memory(&self, address: u64, data: &[u8]) {
        if let Some((device, offset)) = self.virtio(address) {
            device.write(offset, data);
        }
    }

    fn virtio(&self, address: u64) -> Option<(&Attached, u64)> {
        let offset = address.checked_sub(layout::VIRTIO)?;
        let index = usize::try_from(offset / layout::VIRTIO_SIZE).ok()?;
        let device = self.virtio.get(index)?;
        Some((device, offset % layout::VIRTIO_SIZE))
    }
}
