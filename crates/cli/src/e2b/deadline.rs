//! When a sandbox's time is over. Its owner keeps that, as the most that it may live, and ends it then.
//!
//! A sandbox that is to be paused at its deadline is told a life that is longer by [`SPARE`]: so a server that
//! is started later still knows the deadline, and nothing is lost while there is no server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use micabox::{Expiry, SandboxRef};
use tokio::sync::Notify;

use super::Server;
use super::http::blocking;
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

/// The deadlines at which this server has something to do.
#[derive(Debug, Default)]
pub struct Deadlines {
    /// By the sandboxes' IDs, since 1970.
    all: Mutex<HashMap<String, Duration>>,
    changed: Notify,
}

fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
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

/// Returns what a sandbox's deadline adds to that which its owner knows.
fn spare(served: &Served) -> Duration {
    match served.label.on_timeout {
        OnTimeout::Kill => Duration::ZERO,
        OnTimeout::Pause => SPARE,
    }
}

/// Returns a sandbox's deadline, since 1970; None if it has none, as while it is paused.
pub fn of(served: &Served) -> Option<Duration> {
    // Without a wish the owner only says what is.
    let life = served.sandbox.expire(&Expiry::default()).ok()?.max_life;
    let life = life.filter(|life| !life.is_zero())?;
    let since = Duration::from_secs(served.since());
    Some(since + life.saturating_sub(spare(served)))
}

/// Gives a sandbox so many seconds from now. Returns its deadline.
fn set(served: &Served, seconds: u64) -> Result<Duration, Problem> {
    let until = now() + Duration::from_secs(seconds);
    let life = until.saturating_sub(Duration::from_secs(served.since()));
    let life = life.max(Duration::from_millis(1)) + spare(served);
    expire(&served.sandbox, life)?;
    Ok(until)
}

fn expire(sandbox: &SandboxRef, life: Duration) -> Result<(), Problem> {
    let expiry = Expiry {
        max_life: Some(life),
        ..Expiry::default()
    };
    sandbox.expire(&expiry)?;
    Ok(())
}

impl Deadlines {
    fn note(&self, served: &Served, until: Option<Duration>) {
        let mut all = self.lock();
        match until.filter(|_| served.label.on_timeout == OnTimeout::Pause) {
            Some(until) => all.insert(served.id().to_owned(), until),
            None => all.remove(served.id()),
        };
        drop(all);
        self.changed.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Duration>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next deadline, and the sandboxes whose deadline is over.
    fn look(&self) -> (Option<Duration>, Vec<String>) {
        let (mut all, now) = (self.lock(), now());
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

    /// Gives a sandbox so many seconds from now.
    pub async fn give(&self, served: &Served, seconds: u64) -> Result<(), Problem> {
        let again = served.clone();
        let until = blocking(move || set(&again, seconds)).await?;
        self.deadlines.note(served, Some(until));
        Ok(())
    }

    /// As [`Server::give`] for a new sandbox, which ends if that fails: it would stay without a deadline.
    pub async fn give_first(&self, served: &Served, seconds: u64) -> Result<(), Problem> {
        let given = self.give(served, seconds).await;
        if given.is_err() {
            let again = served.clone();
            let _ = blocking(move || Ok(again.sandbox.stop(Duration::ZERO)?)).await;
        }
        given
    }

    /// Gives a sandbox so many seconds, unless it has more.
    pub async fn prolong(&self, served: &Served, seconds: u64) -> Result<(), Problem> {
        let again = served.clone();
        let until = blocking(move || Ok(of(&again))).await?;
        if until.is_some_and(|until| until >= now() + Duration::from_secs(seconds)) {
            return Ok(());
        }
        self.give(served, seconds).await
    }

    /// Pauses a sandbox, which has no deadline until it is resumed.
    pub async fn pause(&self, served: &Served) -> Result<(), Problem> {
        let again = served.clone();
        blocking(move || {
            again.sandbox.pause()?;
            expire(&again.sandbox, Duration::ZERO)
        })
        .await?;
        self.deadlines.note(served, None);
        Ok(())
    }

    /// Lets a paused sandbox continue for so many seconds.
    pub async fn resume(&self, served: &Served, seconds: u64) -> Result<(), Problem> {
        let (again, all) = (served.clone(), self.sandboxes.clone());
        let until = blocking(move || match again.sandbox.unpause() {
            // Of two clients that resume it, both succeed.
            Err(error) if sandbox::find(&all, again.id())?.is_paused() => Err(error.into()),
            _ => set(&again, seconds),
        })
        .await?;
        self.deadlines.note(served, Some(until));
        Ok(())
    }

    /// Pauses sandboxes at their deadlines, those of earlier servers too.
    pub async fn attend(self: Arc<Self>) {
        let sandboxes = self.sandboxes.clone();
        let found = blocking(move || {
            let all = sandbox::all(&sandboxes)?.into_iter();
            let ours = all.filter(|served| served.label.on_timeout == OnTimeout::Pause);
            Ok(ours.map(|served| (of(&served), served)).collect::<Vec<_>>())
        });
        for (until, served) in found.await.unwrap_or_default() {
            self.deadlines.note(&served, until);
        }
        loop {
            let (next, over) = self.deadlines.look();
            for id in over {
                self.pause_at_deadline(&id).await;
            }
            let wait = next.map_or(SPARE, |next| next.saturating_sub(now()));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
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
