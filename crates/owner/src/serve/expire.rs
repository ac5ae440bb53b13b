//! Ends a sandbox that is not used any more, or is old enough.

use std::time::{Duration, Instant};

use super::Owner;
use super::client::ClientId;
use super::end::SIGNAL_GRACE;
use crate::protocol::{Failure, Kind, Reply};

impl Owner {
    /// Handles a client's request to change when the sandbox ends.
    pub(super) fn expire(
        &mut self,
        client: ClientId,
        number: u32,
        idle_timeout: Option<u64>,
        max_life: Option<u64>,
    ) {
        let set = |to: &mut Option<Duration>, wish: Option<u64>| {
            if let Some(millis) = wish {
                *to = (millis > 0).then(|| Duration::from_millis(millis));
            }
        };
        set(&mut self.expiry.idle_timeout, idle_timeout);
        set(&mut self.expiry.max_life, max_life);
        self.expires(client, number);
    }

    /// Handles a client's request to end the sandbox in so long from now.
    pub(super) fn end_in(
        &mut self,
        client: ClientId,
        number: u32,
        millis: u64,
    ) -> Result<(), Failure> {
        let not_ready = || Failure::new(Kind::Invalid, "the sandbox is not ready yet");
        let up = self.guest.up_since().ok_or_else(not_ready)?;
        let life = up.elapsed().saturating_add(Duration::from_millis(millis));
        self.expiry.max_life = Some(life);
        self.expires(client, number);
        Ok(())
    }

    /// Records when the sandbox ends by itself, and tells a client.
    fn expires(&mut self, client: ClientId, number: u32) {
        let millis = |time: Option<Duration>| {
            time.map_or(0, |time| {
                // Never is something else.
                u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
            })
        };
        let idle_timeout = millis(self.expiry.idle_timeout);
        let max_life = millis(self.expiry.max_life);
        if let Some(registrar) = &mut self.registrar {
            // A failure leaves later starts as they were.
            let _ = registrar.expires(idle_timeout, max_life);
        }
        let up = self.guest.up_since();
        let age = up.map_or(Duration::ZERO, |up| up.elapsed());
        let left = self.expiry.max_life.map(|life| life.saturating_sub(age));
        let reply = Reply::Expires {
            idle_timeout,
            max_life,
            left: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        };
        self.clients.send(client, number, &reply);
    }

    /// Returns when the sandbox ends by itself, unless it is used until then.
    pub(super) fn expiry_deadline(&self) -> Option<Instant> {
        let up = self.guest.up_since().filter(|_| !self.end.has_begun())?;
        self.expiry.deadline(up)
    }

    /// Ends the sandbox if it is time.
    pub(super) fn check_expiry(&mut self) {
        let is_idle = self.commands.is_empty() && !self.clients.are_active();
        self.expiry.look(is_idle);
        let deadline = self.expiry_deadline();
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.begin_end(Some(SIGNAL_GRACE));
        }
    }
}
