//! Ends the sandboxes of other processes.

use std::io;
use std::time::{Duration, Instant};

use micabox_error::Error;
use micabox_owner::protocol::{Reply, Request};
use micabox_owner::{Client, FLUSH_TIMEOUT, LAG, Lost, SHUTDOWN_TIMEOUT};
use micabox_state::{Found, Record, Status};
use tracing::{info, warn};

use crate::SandboxRef;

/// How long the first command has after its stop signal by default; as with Docker.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// Interval of checks on an owner that has not replied.
const POLL: Duration = Duration::from_millis(100);

/// How long the start of a sandbox may take to end once that is asked for: it may still make a disk.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A sandbox that was stopped.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// Its record.
    pub record: Record,
    /// Why its machine was killed, if its guest did not shut down. Nothing that a sandbox keeps was
    /// lost.
    pub killed: Option<String>,
}

impl SandboxRef {
    /// Stops the sandbox, as [`Sandbox::stop`](crate::Sandbox::stop) if its owner lives. Does nothing
    /// if it has ended.
    ///
    /// # Errors
    /// [`Error::NoSuchSandbox`]; [`Error::Lost`] if not everything could be
    /// saved; [`Error::Stuck`] if it does not end even when its machine is killed.
    pub fn stop(&self, grace: Duration) -> Result<Stopped, Error> {
        let directory = self.directory();
        let found = directory.find(self.id())?;
        let record = &found.record;
        let stopped = |killed| Stopped {
            record: record.clone(),
            killed,
        };
        if !record.status.is_live() {
            return Ok(stopped(None));
        }
        info!(id = record.short_id(), ?grace, "stopping the sandbox");
        let begun = Instant::now();
        let mut answer = ask(&found, grace);
        // Its owner has a socket once it is ready, and looks for this before.
        let starts = || {
            let now = directory.find(self.id());
            now.is_ok_and(|now| matches!(now.record.status, Status::Starting))
        };
        if answer.is_err() && starts() && micabox_owner::stop_start(&found.path).is_ok() {
            answer = ask(&found, grace);
            if answer.is_err() {
                return if self.wait_for_start_to_end(&found) {
                    Ok(stopped(None))
                } else {
                    Err(Error::Stuck {
                        name: record.name.clone(),
                        after: begun.elapsed(),
                    })
                };
            }
        }
        if let Ok(answer) = answer
            && directory.wait_for_end(&found, SHUTDOWN_TIMEOUT)
        {
            return match answer {
                Reply::Failed(failure) if record.spec.upper.is_kept() => {
                    let lost = failure
                        .lost
                        .map_or_else(|| Lost::unflushed(failure.message), |lost| *lost);
                    Err(lost.into())
                }
                Reply::Stopped { killed } => Ok(stopped(killed)),
                _ => Ok(stopped(None)),
            };
        }
        warn!(
            id = record.short_id(),
            "its owner does not answer: killing its machine"
        );
        // Without its machine it will end.
        if let Some(machine) = directory.find(&record.id)?.record.machine {
            machine.kill();
        }
        if !directory.wait_for_end(&found, SHUTDOWN_TIMEOUT) {
            return Err(Error::Stuck {
                name: record.name.clone(),
                after: begun.elapsed(),
            });
        }
        Ok(stopped(Some(
            "the process that ran it did not answer, and its machine was killed".to_owned(),
        )))
    }

    /// Kills the machine of a sandbox whose start is to end ([`micabox_owner::stop_start`]), as soon as it has one,
    /// and waits for the end. Returns false if it does not come.
    fn wait_for_start_to_end(&self, found: &Found) -> bool {
        let directory = self.directory();
        // A machine that is not in the record ends when its guest is up.
        let deadline = Instant::now() + START_TIMEOUT;
        let mut has_ended = false;
        while !has_ended && Instant::now() < deadline {
            let now = directory.find(self.id());
            if let Some(machine) = now.ok().and_then(|now| now.record.machine) {
                machine.kill();
            }
            has_ended = directory.wait_for_end(found, POLL);
        }
        micabox_owner::forget_stop(&found.path);
        has_ended
    }
}

/// Requests that a sandbox's owner stops it. Returns the reply.
fn ask(found: &Found, grace: Duration) -> io::Result<Reply> {
    // The grace, the guest's shutdown, and reserve for a busy host.
    let patience = grace
        .saturating_add(FLUSH_TIMEOUT)
        .saturating_add(2 * SHUTDOWN_TIMEOUT);
    let begun = Instant::now();
    let mut client = Client::connect(&found.path)?;
    let millis = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    client.request(1, &Request::Stop { grace: millis }, &[])?;
    loop {
        if let Some(reply) = client.reply(1, Instant::now().checked_add(POLL))? {
            return Ok(reply);
        }
        // An owner that a signal has stopped does not reply.
        let is_stopped = || found.record.owner.is_some_and(|owner| owner.is_stopped());
        let is_late = begun.elapsed() > patience;
        if is_late || begun.elapsed() > grace.saturating_add(LAG) && is_stopped() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}
