//! Measures the phases of the set-up.

use micabox_wire::{BootTimings, Phase};

use crate::machine;

/// Measures the phases of the set-up.
#[derive(Debug)]
pub struct Clock {
    last: u64,
    phases: Vec<Phase>,
}

impl Clock {
    /// Creates a clock whose first phase began at `uptime` microseconds.
    pub fn start(uptime: u64) -> Self {
        Self {
            last: uptime,
            phases: Vec::new(),
        }
    }

    /// Ends a phase.
    pub fn lap(&mut self, name: &str) {
        let now = machine::uptime_us();
        self.phases.push(Phase {
            name: name.to_owned(),
            micros: now.saturating_sub(self.last),
        });
        self.last = now;
    }

    /// Returns all phases.
    pub fn into_timings(self) -> BootTimings {
        BootTimings {
            phases: self.phases,
        }
    }
}
