//! How a sandbox ends in order, and for how long its guest is waited for.
//!
//! Whoever stops a sandbox says how long its first command has. Soon after that the guest must
//! have ended, or be seen to work on it: to have processor time, and to write to its disk if
//! it has one. A guest whose files are being written must not be killed for a slow host.

use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::Error;
use crate::error::{Lost, LostReason};
use crate::sandbox::{Inner, lock};
use crate::state::control::{self, Answer, Request};
use crate::state::process::{processor_time, waits_for_disk};
use crate::state::{Found, Record, Sandboxes};

/// How long the first command has after its stop signal if nobody says otherwise; as
/// with Docker.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// How long a guest may do nothing that is seen while it should end.
const LAG: Duration = Duration::from_secs(2);

/// How long a guest may take to kill its commands and to power off; or to write nothing to its
/// disk while it should flush that.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a guest may take to write what is still in its memory to its disk. A host
/// whose disk is busy needs long for a guest's memory full; killing it would lose some.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(600);

/// How often a guest is looked at that should end.
const LOOK: Duration = Duration::from_millis(100);

/// Until when a guest that should end is waited for, if it is not seen to work.
#[derive(Debug, Default)]
pub(crate) struct Patience(Mutex<Option<Instant>>);

impl Patience {
    /// Ends it at `until`, if it doesn't end before.
    fn shorten(&self, until: Instant) {
        let mut end = lock(&self.0);
        *end = Some(end.map_or(until, |end| end.min(until)));
    }

    fn end(&self) -> Option<Instant> {
        *lock(&self.0)
    }
}

/// What can be seen of a guest's work.
struct Work<'a> {
    pid: u32,
    disk: Option<&'a Path>,
    /// Its processor time, and when it was last seen to have some.
    time: Option<u64>,
    ran: Instant,
    /// When its disk was written to and how full it is, and when that was last seen to change.
    state: Option<(i64, i64, u64)>,
    wrote: Instant,
}

impl<'a> Work<'a> {
    fn new(pid: u32, disk: Option<&'a Path>) -> Self {
        let now = Instant::now();
        Self {
            pid,
            disk,
            time: processor_time(pid),
            ran: now,
            state: disk.and_then(state),
            wrote: now,
        }
    }

    fn look(&mut self) {
        let now = Instant::now();
        let time = processor_time(self.pid);
        if time != self.time {
            (self.time, self.ran) = (time, now);
        }
        let state = self.disk.and_then(state);
        if state != self.state || self.disk.is_some() && waits_for_disk(self.pid) {
            (self.state, self.wrote) = (state, now);
        }
    }

    /// Whether it has stopped working on what it was told at `since`.
    fn is_over(&self, since: Instant) -> bool {
        let wrote = self.wrote.max(since).elapsed();
        wrote > SHUTDOWN_TIMEOUT || self.ran.max(self.wrote).elapsed() > LAG
    }
}

fn state(disk: &Path) -> Option<(i64, i64, u64)> {
    let file = disk.metadata().ok()?;
    Some((file.mtime(), file.mtime_nsec(), file.blocks()))
}

impl Inner {
    /// Says that the sandbox ends, and has its machine go on if somebody has it stand still.
    pub(crate) fn begin_end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        if let Some(held) = lock(&self.held).take() {
            let _ = held.shutdown(Shutdown::Both);
        }
    }

    /// Ends the sandbox, with `grace` for its first command and not much more for its guest;
    /// without one it has ended, and the guest is waited for until everything is saved.
    /// Returns why its machine was killed, if that had to be.
    pub(crate) fn stop(&self, grace: Option<Duration>) -> Result<Option<String>, Error> {
        if let Some(grace) = grace {
            // Also for who waits without one.
            let now = Instant::now();
            let until = now.checked_add(grace.saturating_add(LAG));
            self.patience.shorten(until.unwrap_or(now + FLUSH_TIMEOUT));
        }
        self.begin_end();
        let _one_at_a_time = lock(&self.ending);
        let mut work = Work::new(self.machine.pid(), self.keeps.as_deref());
        let result = self
            .end_commands(grace.unwrap_or_default(), &mut work)
            .and_then(|()| self.shut_down(&mut work));
        let is_safe = self.keeps.is_none() || self.is_saved.load(Ordering::Acquire);
        self.machine.kill();
        let _ = self.machine.wait(SHUTDOWN_TIMEOUT);
        match result {
            // It ended by itself meanwhile, or somebody else ended it.
            Err(Error::Lost(Lost {
                reason: LostReason::Machine(_) | LostReason::Closed,
                ..
            })) if is_safe => Ok(None),
            Ok(Some(why)) if !is_safe => Err(Lost::unflushed(why).into()),
            result => result,
        }
    }

    fn end_commands(&self, grace: Duration, work: &mut Work<'_>) -> Result<(), Error> {
        let Some(main) = lock(&self.main).clone() else {
            return Ok(());
        };
        main.signal(self.stop_signal);
        if main.wait_timeout(grace)?.is_none() {
            main.signal(libc::SIGKILL);
            // If it is not gone then, the guest may be able to end all the same.
            self.wait_for_guest(work, |time| Ok(main.wait_timeout(time)?.is_some()))?;
        }
        Ok(())
    }

    /// Has the guest save everything; why it was given up, if it was.
    fn shut_down(&self, work: &mut Work<'_>) -> Result<Option<String>, Error> {
        self.agent.begin_shut_down();
        self.wait_for_guest(work, |time| {
            let is_down = self.agent.is_shut_down(Instant::now() + time)?;
            self.is_saved.fetch_or(is_down, Ordering::AcqRel);
            Ok(is_down)
        })
    }

    /// Waits until the guest has done something, for which `done` is given some time again
    /// and again; why it is given up, if it is.
    fn wait_for_guest(
        &self,
        work: &mut Work<'_>,
        mut done: impl FnMut(Duration) -> Result<bool, Error>,
    ) -> Result<Option<String>, Error> {
        let most = match self.keeps {
            Some(_) => FLUSH_TIMEOUT,
            None => SHUTDOWN_TIMEOUT,
        };
        let mut begun = Instant::now();
        while !done(LOOK)? {
            work.look();
            let is_stalled = self.machine.is_stalled();
            let is_given_up = match self.patience.end() {
                Some(end) => Instant::now() > end && (is_stalled || work.is_over(begun)),
                // A full disk is for its owner to see to.
                None if is_stalled => {
                    begun = Instant::now();
                    false
                }
                None => false,
            };
            if is_given_up || begun.elapsed() > most {
                let why = match is_stalled {
                    true => "the host's disk is full",
                    false => "the guest did not end when it was told to",
                };
                return Ok(Some(format!("{why}, and its machine was killed")));
            }
        }
        Ok(None)
    }
}

/// A sandbox that was stopped.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// What is on record about it.
    pub record: Record,
    /// Why its machine was killed, if its guest did not end in order. Nothing was lost that a
    /// sandbox keeps.
    pub killed: Option<String>,
}

impl Sandboxes {
    /// Ends a sandbox, whoever made it: as [`Sandbox::stop`](crate::Sandbox::stop) if its
    /// creator lives. Nothing happens if it has ended.
    ///
    /// # Errors
    /// [`Error::NoSuchSandbox`], [`Error::Ambiguous`]; [`Error::Lost`] if not everything could be
    /// saved; [`Error::Stuck`] if it does not end even when its machine is killed.
    pub fn stop(&self, name_or_id: &str, grace: Duration) -> Result<Stopped, Error> {
        let Found { record, path } = self.find(name_or_id)?;
        let stopped = |killed| Stopped {
            record: record.clone(),
            killed,
        };
        if !record.status.is_live() {
            return Ok(stopped(None));
        }
        // The grace, the guest's way down, and some for a busy host.
        let patience = grace
            .saturating_add(FLUSH_TIMEOUT)
            .saturating_add(2 * SHUTDOWN_TIMEOUT);
        let begun = Instant::now();
        // A creator that somebody has stopped does nothing.
        let worthwhile = || {
            let is_stopped = || record.owner.is_some_and(|owner| owner.is_stopped());
            begun.elapsed() < grace.saturating_add(LAG) || !is_stopped()
        };
        let answer = control::ask_while(&path, &Request::Stop { grace }, patience, worthwhile);
        let found = Found {
            record: record.clone(),
            path,
        };
        if let Ok(answer) = answer
            && self.wait_for_end(&found, SHUTDOWN_TIMEOUT)
        {
            return match answer {
                Answer::Failed(problem) if record.upper.is_kept() => {
                    Err(Lost::unflushed(problem).into())
                }
                Answer::Killed(why) => Ok(stopped(Some(why))),
                _ => Ok(stopped(None)),
            };
        }
        // Its creator hangs, or has no ear yet. Without its machine it will end.
        if let Some(machine) = self.find(&record.id)?.record.machine {
            machine.kill();
        }
        if !self.wait_for_end(&found, SHUTDOWN_TIMEOUT) {
            return Err(Error::Stuck {
                name: record.name,
                after: begun.elapsed(),
            });
        }
        Ok(stopped(Some(
            "the process that ran it did not answer, and its machine was killed".to_owned(),
        )))
    }
}
