//! Pauses a sandbox for clients: its processors stop until a client resumes them, whatever client is connected
//! meanwhile. Freezes and saves work in a paused sandbox as well; one that ends is resumed, so that its
//! guest can shut down.

use micabox_wire::ToGuest;

use super::Owner;
use super::client::ClientId;
use super::events::Pausing;
use crate::protocol::{Failure, Kind, Reply};

impl Owner {
    /// Handles a client's request to pause the sandbox.
    pub(super) fn pause(&mut self, client: ClientId, number: u32) -> Result<(), Failure> {
        if self.end.has_begun() || self.guest.lost.is_some() {
            return Err(Failure::new(Kind::Ending, "the sandbox is about to end"));
        }
        if self.guest.up.is_none() {
            return Err(Failure::new(Kind::Invalid, "the sandbox is not ready yet"));
        }
        self.saving.check_not_paused()?;
        self.saving.want_pause((client, number));
        self.next_freeze();
        Ok(())
    }

    /// Handles a client's request to resume the sandbox.
    pub(super) fn unpause(&mut self, client: ClientId, number: u32) -> Result<(), Failure> {
        if !self.saving.freezer.is_pause_wanted() {
            return Err(Failure::new(Kind::Invalid, "the sandbox is not paused"));
        }
        self.saving.want_end_of_pause((client, number));
        self.resume();
        Ok(())
    }

    /// Resumes the sandbox if it is paused.
    pub(super) fn resume(&mut self) {
        if self.saving.freezer.is_pause_wanted() {
            self.saving.freezer.want_pause(false);
            self.next_freeze();
        }
    }

    /// Handles progress of a pause.
    pub(super) fn pausing(&mut self, pausing: Pausing) {
        match pausing {
            Pausing::Paused => {
                self.saving.freezer.paused();
                self.note_pause(true);
            }
            Pausing::Over(over) => {
                self.saving.freezer.pause_over();
                if let Err(why) = over {
                    self.saving.freezer.want_pause(false);
                    let failure = Failure::new(Kind::NotFrozen, why);
                    for (client, number) in self.saving.take_waiting(true) {
                        self.clients
                            .send(client, number, &Reply::Failed(failure.clone()));
                    }
                }
                // While the machine is saved, it counts as paused.
                if !self.saving.freezer.is_pause_wanted() {
                    self.note_pause(false);
                }
            }
        }
        self.next_freeze();
    }

    /// Records whether the sandbox is paused, and answers the clients that wanted it.
    fn note_pause(&mut self, is_paused: bool) {
        if let Some(registrar) = &mut self.registrar {
            // The room for the record is there even on a full disk.
            let _ = registrar.paused(is_paused);
        }
        let reply = if is_paused {
            Reply::Paused
        } else {
            Reply::Unpaused
        };
        for (client, number) in self.saving.take_waiting(is_paused) {
            self.clients.send(client, number, &reply);
        }
    }

    /// Does the next thing with the machine, if it is not busy.
    pub(super) fn next_freeze(&mut self) {
        if self.saving.advance(&self.machine, &self.events.notifier) {
            self.guest.send(ToGuest::Quiesce);
        }
    }
}
