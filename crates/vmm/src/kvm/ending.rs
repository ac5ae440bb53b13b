//! How a worker ends, and how its parent learns of it: the exit code is the kind, stderr
//! the words.

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
    /// What the machine was to go on from can't be used.
    BadSnapshot(String),
    /// Something failed on our side of the machine.
    Failed(String),
}

/// Not one that a shell or a Rust panic uses.
const TRIPLE_FAULT: i32 = 33;
const BAD_SNAPSHOT: i32 = 34;
const FAILED: i32 = 1;

impl Ending {
    /// Says it in stderr; the exit code that says it.
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

/// What a worker's exit code and words mean to its parent.
pub(crate) fn exit(code: i32, message: String) -> Exit {
    match code {
        TRIPLE_FAULT => Exit::TripleFault,
        BAD_SNAPSHOT => Exit::BadSnapshot { message },
        _ => Exit::Failed { code, message },
    }
}
