//! Commands: their options, where their streams go, and what is left of them.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use micabox_owner::protocol::{Exec, MAX_WINDOW, Place, Text, WINDOW};
use micabox_wire::{CONNECT, ExitStatus};

/// Where one of a command's streams comes from or goes to.
#[derive(Debug, Default)]
pub enum Stdio {
    /// `/dev/null`.
    #[default]
    Null,
    /// A pipe to this process.
    Piped,
    /// This descriptor. The sandbox's owner reads or writes it directly: no bytes pass through this
    /// process.
    Descriptor(OwnedFd),
    /// Open and always empty; for stdin only.
    Idle,
    /// The sandbox's log; for outputs only.
    Log,
}

impl Stdio {
    /// Returns where the stream is for the owner, and puts aside the descriptor that goes with the request. None for
    /// a pipe, which is a client's own affair.
    pub fn place(self, descriptors: &mut Vec<OwnedFd>) -> Option<Place> {
        Some(match self {
            Self::Null => Place::Null,
            Self::Piped => return None,
            Self::Idle => Place::Idle,
            Self::Log => Place::Log,
            Self::Descriptor(fd) => {
                descriptors.push(fd);
                Place::Descriptor
            }
        })
    }
}

/// The options of a command: its streams, and when it ends.
#[derive(Debug, Default)]
pub struct ExecOptions {
    /// Its stdin.
    pub stdin: Stdio,
    /// Its stdout, or its terminal's output.
    pub stdout: Stdio,
    /// Its stderr; unused with a terminal.
    pub stderr: Stdio,
    /// Whether the sandbox ends with the command and takes its exit code. The first such command is the
    /// sandbox's first command: `Sandbox::stop` asks it to end, and copies of the
    /// machine reattach it.
    pub lifetime: bool,
    /// Time after which the command gets the stop signal.
    pub timeout: Option<Duration>,
    /// Time between the stop signal and SIGKILL.
    pub grace: Duration,
    /// Whether the command continues after this process has ended.
    pub detach: bool,
    /// Whether to measure durations, for `Handle::info`.
    pub measure: bool,
    /// Whether the command gets SIGPIPE when it writes to an output whose descriptor nothing reads
    /// any more. Otherwise the output is dropped.
    pub sigpipe: bool,
    /// Of the asynchronous client: whether the end waits also after SIGKILL until output is read that the command had
    /// written before. Otherwise what exceeds [`ExecOptions::window`] is dropped then.
    pub output_outlives_kill: bool,
    /// A program that takes the place of the command's if there is no such file; empty for none.
    pub fallback: OsString,
    /// What programs that come later are told of the command (`SandboxRef::commands`);
    /// at most 64 KiB.
    pub note: String,
    /// Of the asynchronous client: bytes of each piped output that may be unread until the command waits, at most
    /// 1 MiB. 0 stands for 256 KiB.
    pub window: u32,
}

impl ExecOptions {
    /// Returns options with pipes for all streams; for stdin if the command has one.
    pub fn piped(stdin: bool) -> Self {
        Self {
            stdin: if stdin { Stdio::Piped } else { Stdio::Null },
            stdout: Stdio::Piped,
            stderr: Stdio::Piped,
            ..Self::default()
        }
    }

    /// Completes a request with these options. Where its streams go, the caller says.
    pub fn request(&self, exec: Exec) -> Exec {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Exec {
            lifetime: self.lifetime,
            timeout: self.timeout.map_or(0, |time| millis(time).max(1)),
            grace: millis(self.grace),
            detach: self.detach,
            measure: self.measure,
            sigpipe: self.sigpipe,
            output_outlives_kill: self.output_outlives_kill,
            fallback: Text(self.fallback.as_bytes().to_vec()),
            note: self.note.clone(),
            ..exec
        }
    }

    /// Returns the window of each piped output: [`ExecOptions::window`] within its bounds.
    pub fn output_window(&self) -> u32 {
        match self.window {
            0 => WINDOW,
            window => window.min(MAX_WINDOW),
        }
    }
}

/// Makes the request for a connection to a TCP port of a sandbox's 127.0.0.1, without streams.
pub fn connection(port: u16) -> Exec {
    Exec {
        argv: vec![Text(CONNECT.to_vec()), Text(port.to_string().into_bytes())],
        ..Exec::default()
    }
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Everything it wrote to stdout.
    pub stdout: Vec<u8>,
    /// Everything it wrote to stderr.
    pub stderr: Vec<u8>,
}
