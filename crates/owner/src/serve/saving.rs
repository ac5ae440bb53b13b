//! What stops the machine for a while, and what is kept of it: pauses, freezes and saves.

use std::sync::Arc;

use micabox_vmm::Machine;

use super::client::ClientId;
use super::events::Event;
use super::freezer::{Freezer, Step};
use super::launch::Learn;
use super::wake::Notifier;
use crate::protocol::{Failure, Kind};

/// Pauses, freezes and saves.
pub(super) struct Saving {
    pub(super) freezer: Freezer,
    /// The requests to pause and to resume whose replies are due.
    pausing: Vec<(ClientId, u32)>,
    resuming: Vec<(ClientId, u32)>,
    /// The description for clients that save the machine, or why it can't be saved.
    pub(super) description: Result<serde_json::Value, String>,
    learn: Option<Learn>,
}

impl Saving {
    pub(super) fn new(
        description: Result<serde_json::Value, String>,
        learn: Option<Learn>,
    ) -> Self {
        Self {
            freezer: Freezer::default(),
            pausing: Vec::new(),
            resuming: Vec::new(),
            description,
            learn,
        }
    }

    /// Fails if the sandbox is paused, or about to be.
    pub(super) fn check_not_paused(&self) -> Result<(), Failure> {
        if self.freezer.is_pause_wanted() {
            Err(Failure::new(Kind::Paused, "the sandbox is paused"))
        } else {
            Ok(())
        }
    }

    /// Notes a request to pause the sandbox, which is not paused.
    pub(super) fn want_pause(&mut self, client: (ClientId, u32)) {
        self.freezer.want_pause(true);
        self.pausing.push(client);
    }

    /// Notes a request to resume the sandbox, which is paused.
    pub(super) fn want_end_of_pause(&mut self, client: (ClientId, u32)) {
        self.resuming.push(client);
    }

    /// Takes the requests to pause, or to resume, whose replies are due.
    pub(super) fn take_waiting(&mut self, is_paused: bool) -> Vec<(ClientId, u32)> {
        std::mem::take(if is_paused {
            &mut self.pausing
        } else {
            &mut self.resuming
        })
    }

    /// Does the next thing with the machine, if it is not busy. Returns whether the guest must be
    /// requested to quiesce for that.
    #[must_use]
    pub(super) fn advance(
        &mut self,
        machine: &Arc<dyn Machine>,
        notifier: &Notifier<Event>,
    ) -> bool {
        match self.freezer.begin() {
            Step::Wait => {}
            Step::Quiesce => return true,
            Step::Freeze => self.freezer.freeze(machine, notifier),
            Step::Pause => self.freezer.pause(machine, notifier),
        }
        false
    }

    /// Keeps something of a machine that is about to end for later machines, once.
    pub(super) fn learn(&mut self, machine: &dyn Machine) {
        if let Some(learn) = self.learn.take() {
            learn(machine);
        }
    }
}
