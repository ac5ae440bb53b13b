//! Observes whether the host's disk is full, for a sandbox with a disk.

use std::time::{Duration, Instant};

use micabox_vmm::Machine;

/// Interval of checks.
const LOOK: Duration = Duration::from_secs(1);

/// Whether the machine waits for room on the host's disk.
#[derive(Debug, Default)]
pub(super) struct Stall {
    is_stalled: bool,
    next_look: Option<Instant>,
}

impl Stall {
    /// Sets when the next check is due.
    pub(super) fn watch(&mut self, now: Instant) {
        self.next_look = Some(now + LOOK);
    }

    /// Ends the checks.
    pub(super) fn stop(&mut self) {
        self.next_look = None;
    }

    /// Returns when [`Stall::look`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next_look
    }

    /// Returns whether the machine is stalled, if that has changed.
    pub(super) fn look(&mut self, machine: &dyn Machine) -> Option<bool> {
        let is_stalled = machine.is_stalled();
        let has_changed = is_stalled != self.is_stalled;
        self.is_stalled = is_stalled;
        has_changed.then_some(is_stalled)
    }
}
