//! When a sandbox ends by itself: because it is not used any more, or is old enough.

use std::time::{Duration, Instant};

/// When a sandbox ends by itself.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    pub(super) idle_timeout: Option<Duration>,
    pub(super) max_life: Option<Duration>,
    /// Since when the sandbox has had no command and no client.
    idle_since: Option<Instant>,
}

impl Expiry {
    /// Notes whether the sandbox is used now.
    pub(super) fn look(&mut self, is_idle: bool) {
        self.idle_since = match self.idle_since {
            since @ Some(_) if is_idle => since,
            _ => is_idle.then(Instant::now),
        };
    }

    /// Returns when the sandbox, which has been ready since `up`, ends.
    pub(super) fn deadline(&self, up: Instant) -> Option<Instant> {
        let idle = self.idle_since.zip(self.idle_timeout);
        let life = self.max_life.map(|life| (up, life));
        let ends = idle.into_iter().chain(life);
        ends.filter_map(|(from, time)| from.checked_add(time)).min()
    }
}
