//! Pauses a sandbox for clients: its processors stop until a client resumes them, whatever client is connected
//! meanwhile. Freezes and saves work in a paused sandbox as well; one that ends is resumed, so that its
//! guest can shut down.

use super::Owner;
use super::client::ClientId;
use super::freezer::{Pausing, Step};
use crate::protocol::{Failure, Kind, Reply};

/// The requests whose replies are due.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pausing: Vec<(ClientId, u32)>,
    resuming: Vec<(ClientId, u32)>,
}

impl Owner {
    /// Handles a client's request to pause the sandbox.
    pub(super) fn pause(&mut self, client: ClientId, number: u32) -> Result<(), Failure> {
        if self.end.has_begun() || self.lost.is_some() {
            return Err(Failure::new(Kind::Ending, "the sandbox is about to end"));
        }
        if self.up.is_none() {
            return Err(Failure::new(Kind::Invalid, "the sandbox is not ready yet"));
        }
        self.check_not_paused()?;
        self.freezer.want_pause(true);
        self.pauses.pausing.push((client, number));
        self.next_freeze();
        Ok(())
    }

    /// Handles a client's request to resume the sandbox.
    pub(super) fn unpause(&mut self, client: ClientId, number: u32) -> Result<(), Failure> {
        if !self.freezer.is_pause_wanted() {
            return Err(Failure::new(Kind::Invalid, "the sandbox is not paused"));
        }
        self.pauses.resuming.push((client, number));
        self.resume();
        Ok(())
    }

    /// Resumes the sandbox if it is paused.
    pub(super) fn resume(&mut self) {
        if self.freezer.is_pause_wanted() {
            self.freezer.want_pause(false);
            self.next_freeze();
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

    /// Handles progress of a pause.
    pub(super) fn pausing(&mut self, pausing: Pausing) {
        match pausing {
            Pausing::Paused => {
                self.freezer.paused();
                self.note_pause(true);
            }
            Pausing::Over(over) => {
                self.freezer.pause_over();
                if let Err(why) = over {
                    self.freezer.want_pause(false);
                    let failure = Failure::new(Kind::NotFrozen, why);
                    for (client, number) in std::mem::take(&mut self.pauses.pausing) {
                        self.send(client, number, &Reply::Failed(failure.clone()));
                    }
                }
                // While the machine is saved, it counts as paused.
                if !self.freezer.is_pause_wanted() {
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
        let (waiting, reply) = if is_paused {
            (&mut self.pauses.pausing, Reply::Paused)
        } else {
            (&mut self.pauses.resuming, Reply::Unpaused)
        };
        for (client, number) in std::mem::take(waiting) {
            self.send(client, number, &reply);
        }
    }

    /// Does the next thing with the machine, if it is not busy.
    pub(super) fn next_freeze(&mut self) {
        match self.freezer.begin() {
            Step::Wait => {}
            Step::Quiesce => self.link.outbox.push(micabox_wire::ToGuest::Quiesce),
            Step::Freeze => self.freezer.freeze(&self.machine, &self.notifier),
            Step::Pause => self.freezer.pause(&self.machine, &self.notifier),
        }
    }
}
