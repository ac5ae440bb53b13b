//! A device's interrupt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vmm_sys_util::eventfd::EventFd;

/// Bits of the `InterruptStatus` register.
const USED_BUFFER: u32 = 1;
const CONFIG_CHANGE: u32 = 2;

/// The line and the status register behind it; clones share the interrupt.
///
/// The line is edge-triggered: the driver reads the status, acknowledges it and then processes the
/// queues, so that a later event sets the status again and makes another edge.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    status: Arc<AtomicU32>,
    line: Arc<EventFd>,
}

impl Interrupt {
    pub(crate) fn new(line: EventFd) -> Self {
        Self {
            status: Arc::default(),
            line: Arc::new(line),
        }
    }

    /// Signals a used buffer.
    pub(crate) fn used(&self) {
        self.raise(USED_BUFFER);
    }

    /// Signals a change of the configuration or the device's status.
    pub(crate) fn config_changed(&self) {
        self.raise(CONFIG_CHANGE);
    }

    pub(crate) fn status(&self) -> u32 {
        self.status.load(Ordering::SeqCst)
    }

    /// Sets a status that a copied machine's driver has not seen yet. It is unknown whether the
    /// line was already raised, so it is raised again.
    pub(super) fn resume(&self, status: u32) {
        if status != 0 {
            self.raise(status);
        }
    }

    pub(crate) fn acknowledge(&self, bits: u32) {
        self.status.fetch_and(!bits, Ordering::SeqCst);
    }

    /// Returns the event that raises the line, for KVM.
    pub(crate) fn line(&self) -> &EventFd {
        &self.line
    }

    fn raise(&self, bits: u32) {
        self.status.fetch_or(bits, Ordering::SeqCst);
        // It fails only when the counter is full, which means that the line is raised.
        let _ = self.line.write(1);
    }
}
