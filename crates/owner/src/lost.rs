//! Why the owner lost contact with a guest.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use micabox_vmm::{Exit, Machine};
use micabox_wire::BootFailed;
use serde::{Deserialize, Serialize};

/// Why the owner lost contact with a sandbox's guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lost {
    /// The reason.
    pub reason: LostReason,
    /// The last lines of the guest's console, if they may explain the reason.
    pub console: String,
}

/// The reason of [`Lost`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LostReason {
    /// The guest could not boot.
    BootFailed(BootFailed),
    /// The guest did not answer in time.
    Silent,
    /// The machine ended.
    Machine(Exit),
    /// The guest broke the protocol; its machine was killed.
    Protocol(String),
    /// The guest shut down but could not save everything.
    Unflushed(String),
    /// The sandbox was ended from this side.
    Closed,
    /// The sandbox was stopped before it was ready ([`stop_start`]).
    Stopped,
}

/// The file in a sandbox's directory that says that the sandbox is stopped while it starts: its owner has no socket
/// yet.
const STOPPED: &str = "stopped";

/// Has the owner of the sandbox in `directory` end it if it is not ready yet. The caller also kills the machine, so that
/// the owner need not wait until the guest is up. A sandbox that is ready has a socket by now.
///
/// # Errors
/// Those of making a file.
pub fn stop_start(directory: &Path) -> io::Result<()> {
    let mut options = File::options();
    let options = options.create(true).truncate(true).write(true).mode(0o600);
    options.open(directory.join(STOPPED)).map(drop)
}

/// Forgets what [`stop_start`] did, for another start.
pub fn forget_stop(directory: &Path) {
    // As a rule, there is nothing.
    let _ = fs::remove_file(directory.join(STOPPED));
}

impl Lost {
    pub(crate) fn boot_failed(failure: &BootFailed) -> Self {
        Self::without_console(LostReason::BootFailed(failure.clone()))
    }

    pub(crate) fn silent(machine: &dyn Machine) -> Self {
        // The machine may have ended at the same moment, which is the better reason.
        match machine.wait(Duration::ZERO) {
            Some(exit) => Self::machine(machine, exit),
            None => Self {
                reason: LostReason::Silent,
                console: machine.console_tail(),
            },
        }
    }

    /// The guest shut down but did not save everything.
    pub fn unflushed(problem: String) -> Self {
        Self::without_console(LostReason::Unflushed(problem))
    }

    /// The sandbox was ended from this side.
    pub fn closed() -> Self {
        Self::without_console(LostReason::Closed)
    }

    /// Returns that the sandbox in `directory` was stopped before it was ready, if it was.
    pub(crate) fn stopped(directory: &Path) -> Option<Self> {
        let is_stopped = directory.join(STOPPED).exists();
        is_stopped.then(|| Self::without_console(LostReason::Stopped))
    }

    fn without_console(reason: LostReason) -> Self {
        Self {
            reason,
            console: String::new(),
        }
    }

    /// Returns why the agent's stream has ended: because of `violation`, or else because of the
    /// machine's end, which may take up to `patience`.
    pub(crate) fn end_of_conversation(
        machine: &dyn Machine,
        violation: Option<String>,
        patience: Duration,
    ) -> Self {
        if let Some(violation) = violation {
            machine.kill();
            return Self {
                reason: LostReason::Protocol(violation),
                console: machine.console_tail(),
            };
        }
        if let Some(exit) = machine.wait(patience) {
            return Self::machine(machine, exit);
        }
        machine.kill();
        Self {
            reason: LostReason::Protocol("the guest closed the agent's channel".into()),
            console: machine.console_tail(),
        }
    }

    fn machine(machine: &dyn Machine, exit: Exit) -> Self {
        let console = match exit {
            Exit::PoweredOff | Exit::Panicked { .. } | Exit::TripleFault => machine.console_tail(),
            Exit::BadSnapshot { .. } | Exit::Failed { .. } | Exit::Killed { .. } => String::new(),
        };
        Self {
            reason: LostReason::Machine(exit),
            console,
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            LostReason::BootFailed(failure) => failure.fmt(f),
            LostReason::Silent => f.write_str("the guest did not answer in time"),
            LostReason::Machine(exit) => exit.fmt(f),
            LostReason::Protocol(what) => f.write_str(what),
            LostReason::Unflushed(what) => write!(f, "not everything was written: {what}"),
            LostReason::Closed => f.write_str("it was ended"),
            LostReason::Stopped => f.write_str("it was stopped before it was ready"),
        }
    }
}

impl std::error::Error for Lost {}
