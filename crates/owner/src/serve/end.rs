//! The state of a sandbox's end: first command, guest, machine.
//!
//! A client that stops a sandbox sets the grace of the first command. Soon after that, the guest
//! must have shut down, or show activity ([`Work`]).

use std::path::Path;
use std::time::{Duration, Instant};

use super::client::ClientId;
use super::work::{FLUSH_TIMEOUT, LAG, SHUTDOWN_TIMEOUT, Work};
use crate::protocol::{Failure, Kind};
use crate::{Lost, LostReason};

/// Time between the first command's stop signal and SIGKILL when the sandbox ends by itself, or when
/// a signal ends the owner.
pub(super) const SIGNAL_GRACE: Duration = Duration::from_secs(10);

/// Interval of checks on a guest that should end.
const LOOK: Duration = Duration::from_millis(100);

/// The phase of a sandbox's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// The first command has been sent its stop signal.
    Asked {
        until: Instant,
    },
    /// The first command has been sent SIGKILL.
    Killed,
    /// The guest was requested to shut down.
    ShuttingDown,
    /// The machine has been killed.
    Dying,
    Over,
}

/// The end of a sandbox.
#[derive(Debug)]
pub(super) struct End {
    pub(super) phase: Phase,
    /// Until when the owner waits for a guest that should end, if the guest shows no activity.
    patience: Option<Instant>,
    /// The guest's activity, and when it was last requested to do something.
    work: Option<(Work, Instant)>,
    next_look: Option<Instant>,
    /// The guest has reported that everything is saved.
    pub(super) is_saved: bool,
    /// The timeout of the first command has passed.
    pub(super) timed_out: bool,
    /// The end was begun because nothing reads the output of the command with the sandbox's
    /// lifetime.
    pub(super) is_unseen: bool,
    /// Why that output can't be written, if something may read it.
    pub(super) unwritten: Option<String>,
    /// A client requested a kill.
    pub(super) is_killed: bool,
    /// The creator died.
    pub(super) is_abandoned: bool,
    /// The result, once known: why the machine was killed, if it was, or why the guest was lost.
    pub(super) result: Option<Result<Option<String>, Lost>>,
    /// Exit code and failure of the command with the sandbox's lifetime.
    pub(super) code: Option<u8>,
    pub(super) failure: Option<Failure>,
    /// Clients that wait for the end, and their requests' numbers.
    pub(super) waiting: Vec<(ClientId, u32)>,
    /// Clients that wait for the exit code, and their requests' numbers.
    pub(super) watching: Vec<(ClientId, u32)>,
}

/// The next step of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait,
    /// Kill the first command.
    Kill,
    /// Kill the machine.
    Die,
}

impl Default for End {
    fn default() -> Self {
        Self {
            phase: Phase::Running,
            patience: None,
            work: None,
            next_look: None,
            is_saved: false,
            timed_out: false,
            is_unseen: false,
            unwritten: None,
            is_killed: false,
            is_abandoned: false,
            result: None,
            code: None,
            failure: None,
            waiting: Vec::new(),
            watching: Vec::new(),
        }
    }
}

impl End {
    /// Notes how the command with the sandbox's lifetime ended, whose output nothing took.
    pub(super) fn was_unseen(&mut self) {
        match &self.unwritten {
            Some(why) => {
                let message = format!("writing the command's output: {why}");
                self.failure = Some(Failure::new(Kind::Unwritten, message));
            }
            None => self.code = Some(exit_code(libc::SIGPIPE)),
        }
    }

    /// Returns whether the sandbox's end has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.phase != Phase::Running
    }

    /// Bounds the guest's time by a client's `grace`.
    pub(super) fn bound(&mut self, grace: Duration) {
        let now = Instant::now();
        let until = now.checked_add(grace.saturating_add(LAG));
        let until = until.unwrap_or(now + FLUSH_TIMEOUT);
        self.patience = Some(self.patience.map_or(until, |end| end.min(until)));
        if let Phase::Asked { until } = &mut self.phase {
            *until = (*until).min(now.checked_add(grace).unwrap_or(*until));
        }
    }

    /// Notes that the first command has got its stop signal.
    pub(super) fn ask(&mut self, grace: Duration) {
        let now = Instant::now();
        let until = now.checked_add(grace).unwrap_or(now + FLUSH_TIMEOUT);
        self.phase = Phase::Asked { until };
    }

    /// Enters `phase`, and begins to observe the guest, which was requested to do something.
    pub(super) fn watch(&mut self, phase: Phase, pid: u32, disk: Option<&Path>) {
        self.phase = phase;
        self.work = Some((Work::new(pid, disk), Instant::now()));
        self.next_look = Some(Instant::now() + LOOK);
    }

    /// Returns when [`End::look`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Asked { until } => Some(until),
            Phase::Killed | Phase::ShuttingDown => self.next_look,
            Phase::Running | Phase::Dying | Phase::Over => None,
        }
    }

    /// Returns the step to take now.
    pub(super) fn look(&mut self, is_stalled: bool, keeps: bool) -> Step {
        let now = Instant::now();
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Step::Wait;
        }
        if matches!(self.phase, Phase::Asked { .. }) {
            return Step::Kill;
        }
        self.next_look = Some(now + LOOK);
        let Some((work, begun)) = &mut self.work else {
            return Step::Wait;
        };
        let most = if keeps {
            FLUSH_TIMEOUT
        } else {
            SHUTDOWN_TIMEOUT
        };
        work.look();
        let is_given_up = match self.patience {
            Some(end) => now > end && (is_stalled || work.is_over(*begun)),
            // No client has set a bound: the user may still make room on the full disk.
            None if is_stalled => {
                *begun = now;
                false
            }
            None => false,
        };
        if !is_given_up && begun.elapsed() <= most {
            return Step::Wait;
        }
        let why = if is_stalled {
            "the host's disk is full"
        } else {
            "the guest did not end when asked to"
        };
        self.result = Some(Ok(Some(format!("{why}, and its machine was killed"))));
        Step::Die
    }

    /// Returns the result of the end, now that the machine is gone.
    pub(super) fn conclude(&self, keeps: bool) -> Result<Option<String>, Lost> {
        let is_safe = !keeps || self.is_saved;
        match self.result.clone().unwrap_or(Ok(None)) {
            // The machine ended by itself meanwhile, or was killed.
            Err(Lost {
                reason: LostReason::Machine(_) | LostReason::Closed | LostReason::Stopped,
                ..
            }) if is_safe => Ok(None),
            Ok(Some(why)) if !is_safe => Err(Lost::unflushed(why)),
            result => result,
        }
    }
}

/// Returns the exit code of a command that a signal has ended.
pub(super) fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
