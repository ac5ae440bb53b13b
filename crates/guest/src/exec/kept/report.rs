//! What a kept process reports to the agent.

use micabox_wire::{MAX_DATA, Message, StartFailed};
use serde::{Deserialize, Serialize};

/// Most bytes of an operation's output: what is around them fits into a message.
pub const MOST_OUTPUT: usize = MAX_DATA - 64;

/// Most bytes of a file that are read: there is room for a failure beside them.
pub const MOST_READ: u64 = 24 << 10;

/// A message. All but the first are about the one operation that the process was given.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// Its PID in the sandbox.
    Pid(i32),
    /// It can't become what it must be, and ends.
    Unfit(StartFailed),
    /// A new process would be another one: of another user, root or limits. The operation
    /// has not begun, and the process ends.
    Stale,
    /// The operation has begun, and may take long.
    Started,
    /// The operation can't begin.
    Failed(StartFailed),
    /// Its output has no room in a message, or may have none. Nothing was changed.
    TooLong,
    /// The operation is over: with this output, and if it has failed after its start, with this failure.
    Over(Vec<u8>, Option<Vec<u8>>),
}

impl Message for Report {
    const MAX_FRAME: usize = MAX_DATA;
}
