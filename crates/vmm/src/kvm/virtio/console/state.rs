//! The console's state in a saved machine. A copy has a different stream.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::device::Console;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    /// Control messages for the driver.
    waiting: VecDeque<Vec<u8>>,
    /// Bytes of the next chain to transmit that the host has taken.
    sent: usize,
}

impl State {
    pub(super) fn of(console: &Console) -> Self {
        Self {
            waiting: console.control.waiting().clone(),
            sent: console.sent,
        }
    }

    pub(super) fn give_to(self, console: &mut Console) {
        console.control.resume(self.waiting);
        console.sent = self.sent;
    }
}
