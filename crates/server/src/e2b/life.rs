//! How long sandboxes live: requests and deadlines end, pause and resume them.

use std::sync::Arc;
use std::time::Duration;

use micabox::{Error, Expiry};
use tokio::time::{Instant, timeout};

use super::deadline::{AFTER_RESUME, SPARE, left, life};
use super::http::{blocking, waiting};
use super::label::OnTimeout;
use super::owners;
use super::problem::{Kind, Problem};
use super::sandbox::{self, Served};
use super::server::Server;

/// How long an owner may take to kill its machine. One that takes longer does not answer.
const KILL: Duration = Duration::from_secs(10);

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

impl Server {
    /// Has a sandbox that was found for a request to itself run: resumes it if it is paused and has auto-resume.
    pub async fn awake(&self, served: &Served) -> Result<(), Problem> {
        if self.is_ending(served.id()) {
            return Err(Problem::no_sandbox());
        }
        if !served.is_paused() {
            return Ok(());
        }
        if !served.label.auto_resume {
            return Err(Problem::no_sandbox());
        }
        self.resume(served, AFTER_RESUME).await
    }

    /// Forgets a sandbox that is about to end.
    pub fn forget(&self, id: &str) {
        self.deadlines.forget(id);
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

    /// Ends a sandbox that may have ended meanwhile.
    pub async fn end(&self, served: Served) -> Result<(), Problem> {
        let id = served.id().to_owned();
        self.ending.begin(&id);
        self.forget(&id);
        let mut killed = false;
        if served.keeps_nothing() {
            // Like a power cut, after which nothing is missing.
            let done = timeout(KILL, served.kill()).await;
            killed = done.is_ok_and(|done| done.is_ok());
        }
        owners::forget(&id);
        let ended = waiting(&id, move || {
            if killed && served.sandbox.wait_timeout(KILL) {
                return Ok(());
            }
            match served.sandbox.stop(Duration::ZERO) {
                Ok(_) | Err(Error::Lost(_) | Error::NoSuchSandbox(_)) => Ok(()),
                Err(error) => Err(error.into()),
            }
        });
        let ended = ended.await;
        self.ending.over(&id);
        ended
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
            _ => self.deadlines.forget(id),
        }
    }
}
