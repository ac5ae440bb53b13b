//! When a sandbox's time is over. Its owner keeps that, as the most that it may live, and ends it then. It measures
//! the time itself, so no step of this machine's wall clock ends a sandbox early or late.
//!
//! For a sandbox to pause at its deadline, the longest life that its owner is told is the deadline plus [`SPARE`]. So a
//! server that is started later can still pause it, and nothing is lost while there is no server.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use micabox::Expires;
use micabox_ground::{clock, lock};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::label::OnTimeout;
use super::problem::Problem;
use super::sandbox::Served;

/// Ten years.
pub const SPARE: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The longest time that a client may ask for: thirty days.
pub const LONGEST: u64 = 30 * 86_400;

/// Seconds of a new sandbox, unless the client wants something else.
pub const DEFAULT: u64 = 300;

/// Seconds of a sandbox that a request has resumed.
pub const AFTER_RESUME: u64 = 300;

/// How long a sandbox that could not be paused is left alone.
const AGAIN: Duration = Duration::from_secs(10);

/// What its start and its life say of a sandbox's end is shown, as long as it differs less from what is left: it is the
/// same each time. It differs by more when the wall clock has stepped.
const NEAR: Duration = Duration::from_secs(2);

/// The deadlines at which this server has something to do.
#[derive(Debug, Default)]
pub struct Deadlines {
    /// By the sandboxes' IDs.
    all: Mutex<HashMap<String, Instant>>,
    pub(super) changed: Notify,
}

/// Returns the number of seconds that a client asked for, if there can be so many.
pub fn seconds(asked: Option<u64>, default: u64) -> Result<u64, Problem> {
    let seconds = asked.unwrap_or(default);
    if seconds > LONGEST {
        return Err(Problem::invalid(format!(
            "the timeout is longer than {LONGEST} seconds"
        )));
    }
    Ok(seconds)
}

/// Returns how long a sandbox's owner is told to let it live, for so many seconds.
pub fn life(on_timeout: OnTimeout, seconds: u64) -> Duration {
    // Zero is never.
    let seconds = Duration::from_secs(seconds).max(Duration::from_millis(1));
    seconds + spare(on_timeout)
}

/// Returns what is added to a sandbox's deadline in what its owner knows.
fn spare(on_timeout: OnTimeout) -> Duration {
    match on_timeout {
        OnTimeout::Kill => Duration::ZERO,
        OnTimeout::Pause => SPARE,
    }
}

/// Returns how long it is until a sandbox's deadline; None if it has none, as while it is paused.
pub fn left(served: &Served, expires: &Expires) -> Option<Duration> {
    let left = expires.left?;
    Some(left.saturating_sub(spare(served.label.on_timeout)))
}

/// Returns a sandbox's deadline by this machine's wall clock, since 1970, for people to read; None if it has none.
pub fn shown(served: &Served) -> Option<Duration> {
    let expires = served.sandbox.expires().ok()?;
    let by_left = clock::now() + left(served, &expires)?;
    let life = expires.expiry.max_life.unwrap_or_default();
    let life = life.saturating_sub(spare(served.label.on_timeout));
    let by_life = Duration::from_secs(served.since()).saturating_add(life);
    let is_near = by_life.abs_diff(by_left) < NEAR;
    Some(if is_near { by_life } else { by_left })
}

impl Deadlines {
    /// Notes what is left until a sandbox's deadline, if this server pauses the sandbox then.
    pub fn note(&self, served: &Served, left: Option<Duration>) {
        let mut all = self.lock();
        let until = left.map(|left| Instant::now() + left);
        match until.filter(|_| served.label.on_timeout == OnTimeout::Pause) {
            Some(until) => all.insert(served.id().to_owned(), until),
            None => all.remove(served.id()),
        };
        drop(all);
        self.changed.notify_one();
    }

    /// Forgets a sandbox.
    pub fn forget(&self, id: &str) {
        self.lock().remove(id);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        lock(&self.all)
    }

    /// The next deadline, and the sandboxes whose deadline is over.
    pub fn look(&self) -> (Option<Instant>, Vec<String>) {
        let (mut all, now) = (self.lock(), Instant::now());
        let over = all.iter().filter(|(_, until)| **until <= now);
        let over: Vec<_> = over.map(|(id, _)| id.clone()).collect();
        for id in &over {
            // Until it is known how that went.
            all.insert(id.clone(), now + AGAIN);
        }
        (all.values().min().copied(), over)
    }
}
