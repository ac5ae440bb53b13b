//! How a worker ends, and how it reports that to its parent: the exit code is the kind, stderr the
//! message.

use crate::Exit;

/// Why a machine's worker ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The guest powered off or asked for a reset. A panicked kernel does too; what it
    /// wrote to the console tells them apart.
    PoweredOff,
    /// A processor of the guest shut down: it could not even handle the failure to handle
    /// an exception.
    TripleFault,
    /// The snapshot to restore can't be used.
    BadSnapshot(String),
    /// The worker failed.
    Failed(String),
}

/// Exit codes that neither a shell nor a Rust panic uses.
const TRIPLE_FAULT: i32 = 33;
const BAD_SNAPSHOT: i32 = 34;
const FAILED: i32 = 1;

impl Ending {
    /// Writes the message to stderr; returns the exit code.
    pub(crate) fn report(self) -> i32 {
        match self {
            Self::PoweredOff => 0,
            Self::TripleFault => TRIPLE_FAULT,
            Self::BadSnapshot(message) => {
                eprintln!("{message}");
                BAD_SNAPSHOT
            }
            Self::Failed(message) => {
                eprintln!("{message}");
                FAILED
            }
        }
    }
}

/// Returns what a worker's exit code and message mean.
pub(crate) fn exit(code: i32, message: String) -> Exit {
    match code {
        TRIPLE_FAULT => Exit::TripleFault,
        BAD_SNAPSHOT => Exit::BadSnapshot { message },
        _ => Exit::Failed { code, message },
    }
}
