//! How mica attends to the first command of a sandbox.

use std::time::Duration;

use super::flags::Timing;
use super::keys::Keys;

/// How mica attends to a running command.
#[derive(Clone, Debug, Default)]
pub struct AttachOptions {
    /// Whether the command has a terminal.
    pub tty: bool,
    /// Whether mica's stdin is passed on to the command.
    pub interactive: bool,
    /// Whether the command's stdin is open, with mica's input or empty.
    pub has_stdin: bool,
    /// Whether the command's stdout and stderr go nowhere.
    pub silent: [bool; 2],
    /// Whether the command continues when mica ends: signals are for mica, and output that nothing reads is dropped.
    pub continues: bool,
    /// Whether the sandbox is detached.
    pub detached: bool,
    /// Whether a detached sandbox runs no command.
    pub idle: bool,
    /// Time after which the command is stopped.
    pub timeout: Option<Duration>,
    /// Seconds between the stop signal and SIGKILL.
    pub stop_timeout: u64,
    /// The keys that leave the command running.
    pub detach_keys: Keys,
    /// The format in which timings are printed, if they are.
    pub timing: Option<Timing>,
}
