//! Requests to freeze the machine, and their replies.

use std::os::fd::OwnedFd;

use micabox_ground::{clock, random};
use micabox_vmm::Snapshot;
use micabox_wire::ToGuest;

use super::Owner;
use super::client::ClientId;
use super::freezer::FreezeRequest;
use crate::protocol::{Failure, Kind, Reply};

impl Owner {
    /// Handles a client's request to freeze the machine, and to save it if `memory`.
    pub(super) fn freeze(
        &mut self,
        client: ClientId,
        number: u32,
        memory: bool,
        delta: bool,
    ) -> Result<(), Failure> {
        let mut memory = memory.then(|| self.snapshot(client)).transpose()?;
        if let Some(memory) = memory.as_mut().filter(|_| delta) {
            memory.base = self.machine.base();
        }
        if self.end.has_begun() || self.guest.lost.is_some() {
            return Err(Failure::new(Kind::Ending, "the sandbox is about to end"));
        }
        if memory.is_some()
            && let Err(why) = &self.saving.description
        {
            return Err(Failure::new(Kind::NotFrozen, why.clone()));
        }
        self.saving.freezer.push(FreezeRequest {
            client,
            number,
            memory,
        });
        self.next_freeze();
        Ok(())
    }

    /// Returns the files that came with a request to save a machine.
    fn snapshot(&mut self, client: ClientId) -> Result<Snapshot, Failure> {
        let missing = || Failure::new(Kind::Invalid, "two files are needed for the machine");
        let client = self.clients.get_mut(client).ok_or_else(missing)?;
        let mut next = || {
            let file: Option<OwnedFd> = client.descriptors.pop_front();
            file.map(std::fs::File::from).ok_or_else(missing)
        };
        Ok(Snapshot::new(next()?, next()?))
    }

    /// Notifies the client that the machine is frozen.
    pub(super) fn frozen(&mut self) {
        let Some(request) = self.saving.freezer.current() else {
            return;
        };
        let (client, number) = (request.client, request.number);
        let note = match (&request.memory, &self.saving.description) {
            (Some(_), Ok(note)) => note.clone(),
            _ => serde_json::Value::Null,
        };
        let base = request.memory.as_ref();
        let base = base.and_then(|memory| memory.base.clone());
        let first = self.commands.living_first();
        let reply = Reply::Frozen {
            main: first.map(|first| first.id),
            note,
            base: base.is_some(),
        };
        match base {
            Some(base) => self.clients.send_with(client, number, &reply, base),
            None => self.clients.send(client, number, &reply),
        }
    }

    /// Handles the end of a freeze: the machine runs again, or never was frozen.
    pub(super) fn freeze_over(&mut self, over: Result<bool, String>) {
        let saved = self.saving.freezer.saves();
        let Some(request) = self.saving.freezer.end() else {
            return;
        };
        if saved && self.guest.is_linked {
            match random() {
                Ok(entropy) => self.guest.link.outbox.release(ToGuest::Thaw {
                    wall_clock: clock::now_as_parts(),
                    entropy,
                }),
                // A guest must not continue with the same random numbers as its copy.
                Err(_) => self.machine.kill(),
            }
        }
        let is_ending = self.guest.lost.is_some() || self.end.has_begun() || self.end.is_killed;
        let reply = match over {
            Ok(true) => Reply::Thawed,
            _ if is_ending => {
                Reply::Failed(Failure::new(Kind::Ending, "the sandbox is about to end"))
            }
            Ok(false) => {
                let message = "the machine was resumed too early";
                Reply::Failed(Failure::new(Kind::NotFrozen, message))
            }
            Err(why) => Reply::Failed(Failure::new(Kind::NotFrozen, why)),
        };
        self.clients.send(request.client, request.number, &reply);
        self.next_freeze();
    }
}
