//! When a sandbox's time is over. Its owner keeps that, as the most that it may live, and ends it then. It measures
//! the time itself, so no step of this machine's wall clock ends a sandbox early or late.
//!
//! For a sandbox to pause at its deadline, the longest life that its owner is told is the deadline plus [`SPARE`]. So a
//! server that is started later can still pause it, and nothing is lost while there is no server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use micabox::{Expires, Expiry};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Server;
use super::http::{blocking, waiting};
use super::label::OnTimeout;
use super::problem::{Kind, Problem};
use super::sandbox::{self, Served};

/// Ten years.
const SPARE: Duration = Duration::from_secs(10 * 366 * 86_400);

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
    changed: Notify,
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
fn left(served: &Served, expires: &Expires) -> Option<Duration> {
    let left = expires.left?;
    Some(left.saturating_sub(spare(served.label.on_timeout)))
}

/// Returns a sandbox's deadline by this machine's wall clock, since 1970, for people to read; None if it has none.
pub fn shown(served: &Served) -> Option<Duration> {
    let expires = served.sandbox.expires().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let by_left = now.unwrap_or_default() + left(served, &expires)?;
    let life = expires.expiry.max_life.unwrap_or_default();
    let life = life.saturating_sub(spare(served.label.on_timeout));
    let by_life = Duration::from_secs(served.since()).saturating_add(life);
    let is_near = by_life.abs_diff(by_left) < NEAR;
    Some(if is_near { by_life } else { by_left })
}

/// Gives a sandbox so many seconds from now.
fn set(served: &Served, seconds: u64) -> Result<(), Problem> {
    let life = life(served.label.on_timeout, seconds);
    served.sandbox.end_in(life)?;
    Ok(())
}

/// Takes a sandbox's deadline away.
fn unset(served: &Served) -> Result<(), Problem> {
    let never = Expiry {
        max_life: Some(Duration::ZERO),
        ..Expiry::default()
    };
    served.sandbox.expire(&never)?;
    Ok(())
}

impl Deadlines {
    fn note(&self, served: &Served, left: Option<Duration>) {
        let mut all = self.lock();
        let until = left.map(|left| Instant::now() + left);
        match until.filter(|_| served.label.on_timeout == OnTimeout::Pause) {
            Some(until) => all.insert(served.id().to_owned(), until),
            None => all.remove(served.id()),
        };
        drop(all);
        self.changed.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next deadline, and the sandboxes whose deadline is over.
    fn look(&self) -> (Option<Instant>, Vec<String>) {
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

impl Server {
    /// Forgets a sandbox that is about to end.
    pub fn forget(&self, id: &str) {
        self.deadlines.lock().remove(id);
        self.contexts.forget(id);
        self.processes.known.forget(id);
    }

    /// Attends to a new sandbox, which was made with so many seconds.
    pub fn expect(&self, served: &Served, seconds: u64) {
        self.deadlines
            .note(served, Some(Duration::from_secs(seconds)));
    }

    /// Gives a sandbox so many seconds from now.
    pub async fn give(&self, served: &Served, seconds: u64) -> Result<(), Problem> {
        let again = served.clone();
        waiting(served.id(), move || set(&again, seconds)).await?;
        self.expect(served, seconds);
        Ok(())
    }

    /// Gives a sandbox so many seconds, unless it has more.
    pub async fn prolong(&self, served: &Served, seconds: u64) -> Result<(), Problem> {
        let again = served.clone();
        let left = waiting(served.id(), move || {
            Ok(left(&again, &again.sandbox.expires()?))
        })
        .await?;
        if left.is_some_and(|left| left >= Duration::from_secs(seconds)) {
            return Ok(());
        }
        self.give(served, seconds).await
    }

    /// Pauses a sandbox, which has no deadline until it is resumed.
    pub async fn pause(&self, served: &Served) -> Result<(), Problem> {
        let again = served.clone();
        waiting(served.id(), move || {
            again.sandbox.pause()?;
            unset(&again)
        })
        .await?;
        self.deadlines.note(served, None);
        Ok(())
    }

    /// Lets a paused sandbox continue for so many seconds.
    pub async fn resume(&self, served: &Served, seconds: u64) -> Result<(), Problem> {
        let (again, all) = (served.clone(), self.sandboxes.clone());
        waiting(served.id(), move || {
            // First, so that none runs without a deadline if this server ends now.
            set(&again, seconds)?;
            match again.sandbox.unpause() {
                // Of two clients that resume it, both succeed.
                Err(error) if sandbox::find(&all, again.id())?.is_paused() => {
                    unset(&again)?;
                    Err(error.into())
                }
                _ => Ok(()),
            }
        })
        .await?;
        self.expect(served, seconds);
        Ok(())
    }

    /// Pauses sandboxes at their deadlines, those of earlier servers too.
    pub async fn attend(self: Arc<Self>) {
        let sandboxes = self.sandboxes.clone();
        let found = blocking(move || {
            let all = sandbox::all(&sandboxes)?.into_iter();
            let ours = all.filter(|served| served.label.on_timeout == OnTimeout::Pause);
            let ends = ours.map(|served| {
                let expires = served.sandbox.expires().ok();
                (expires.and_then(|expires| left(&served, &expires)), served)
            });
            Ok(ends.collect::<Vec<_>>())
        });
        for (left, served) in found.await.unwrap_or_default() {
            self.deadlines.note(&served, left);
        }
        loop {
            let (next, over) = self.deadlines.look();
            for id in over {
                self.pause_at_deadline(&id).await;
            }
            let next = next.unwrap_or_else(|| Instant::now() + SPARE);
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.deadlines.changed.notified() => {}
            }
        }
    }

    async fn pause_at_deadline(&self, id: &str) {
        let (all, name) = (self.sandboxes.clone(), id.to_owned());
        match blocking(move || sandbox::find(&all, &name)).await {
            Ok(served) if !served.is_paused() => {
                let _ = self.pause(&served).await;
            }
            // It is looked for again.
            Err(problem) if !matches!(problem.kind, Kind::Gone | Kind::NotFound) => {}
            _ => {
                self.deadlines.lock().remove(id);
            }
        }
    }
}
