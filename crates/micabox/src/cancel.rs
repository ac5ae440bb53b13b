//! A start that is given up.

use std::sync::{Arc, Mutex};

use micabox_vmm::Machine;

use crate::sandbox::lock;

/// Gives a start up, from another thread.
#[derive(Clone, Default)]
pub struct Cancel {
    state: Arc<Mutex<CancelState>>,
}

#[derive(Default)]
struct CancelState {
    cancelled: bool,
    machine: Option<Arc<dyn Machine>>,
}

impl Cancel {
    /// Gives the start up: [`Builder::create`](crate::Builder::create) fails with [`Error::Cancelled`](crate::Error::Cancelled) if it
    /// has not succeeded yet. Later, it kills the machine.
    pub fn cancel(&self) {
        let mut state = lock(&self.state);
        state.cancelled = true;
        if let Some(machine) = &state.machine {
            machine.kill();
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        lock(&self.state).cancelled
    }

    pub(crate) fn watch(&self, machine: &Arc<dyn Machine>) {
        let mut state = lock(&self.state);
        if state.cancelled {
            machine.kill();
        }
        state.machine = Some(Arc::clone(machine));
    }
}
