//! The messages of `mica serve`.

use std::path::Path;

use micabox::{ErrorKind, Record};
use micabox_owner::protocol::{Stream, Text};
use serde::{Deserialize, Serialize};

use micabox_creation::Create;
use micabox_program::failure::Failure;
use micabox_program::report::Failed;

/// A client's request.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "manual", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "manual", schemars(rename = "ServeRequest"))]
pub enum Request {
    /// Run a command of mica. Replies: [`Reply::Started`], and [`Reply::Exited`] when it has ended. The
    /// number stands for the command until then.
    Command(Command),
    /// Grant: so many more bytes of an output may be sent.
    Credit {
        /// The output.
        stream: Stream,
        /// Bytes.
        bytes: u32,
    },
    /// Send a command a signal: its number on Linux x86-64, 1 to 64.
    Signal {
        /// The number.
        signal: i32,
    },
    /// Make an idle sandbox, which ends with the client. Reply: [`Reply::Sandboxes`].
    Create {
        /// What it is made of.
        #[serde(flatten)]
        create: Create,
        /// Whether the client wants to hear of pulls, before the reply: [`Report`](micabox_program::progress::Report).
        #[serde(default)]
        progress: bool,
    },
    /// Give up the creation with this number, which then fails: [`Reply::Failed`]. One that has succeeded
    /// meanwhile has its reply, and nothing happens.
    Cancel,
    /// Make copies of a running sandbox, which end with the client. Reply: [`Reply::Sandboxes`].
    Fork {
        /// Its name or ID.
        sandbox: String,
        /// How many.
        count: u16,
    },
    /// Let a sandbox that this client has made continue without it. Reply: [`Reply::Detached`].
    Detach {
        /// Its ID.
        sandbox: String,
    },
}

/// A command of mica.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "manual", derive(schemars::JsonSchema))]
pub struct Command {
    /// The words behind `mica`.
    pub args: Vec<Text>,
    /// Whether the client sends stdin, in frames; else it is empty.
    #[serde(default)]
    pub stdin: bool,
    /// Bytes of stdout, and separately of stderr, that may be sent before the client grants more; 0
    /// stands for 256 KiB.
    #[serde(default)]
    pub window: u32,
}

/// A message to the client.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "manual", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "manual", schemars(rename = "ServeReply"))]
pub enum Reply<'a> {
    /// The first message, without a request.
    Hello {
        /// Of mica.
        version: &'static str,
        /// Where images, sandboxes and their sockets are.
        home: &'a Path,
    },
    /// The command runs.
    Started {
        /// Bytes of stdin that may be sent before more are granted.
        window: u32,
    },
    /// Grant: so many more bytes of stdin may be sent.
    Credit {
        /// Bytes.
        bytes: u32,
    },
    /// The command has ended, and all its output was sent.
    Exited {
        /// The exit code, or 128 and the signal that ended it.
        code: i32,
        /// Why it failed, if it has said so.
        #[serde(skip_serializing_if = "Option::is_none")]
        failed: Option<Failed>,
    },
    /// The sandboxes run.
    Sandboxes {
        /// Each.
        sandboxes: Vec<Made<'a>>,
    },
    /// The sandbox continues without the client.
    Detached,
    /// The request failed.
    Failed {
        /// For programs.
        #[serde(skip_serializing_if = "Option::is_none")]
        kind: Option<ErrorKind>,
        /// For people: what failed, and why.
        message: &'a str,
        /// For people: what to do about it.
        #[serde(skip_serializing_if = "Option::is_none")]
        hint: Option<&'a str>,
    },
}

/// A sandbox that runs.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "manual", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "manual", schemars(rename = "MadeSandbox"))]
pub struct Made<'a> {
    /// The directory of its state, with its owner's socket `control`.
    pub directory: &'a Path,
    /// As `mica inspect` shows it.
    #[cfg_attr(
        feature = "manual",
        schemars(with = "serde_json::Map<String, serde_json::Value>")
    )]
    pub record: &'a Record,
}

impl<'a> Reply<'a> {
    /// The reply for a request that failed.
    pub fn failed(failure: &'a Failure) -> Self {
        Self::Failed {
            kind: failure.kind,
            message: failure.message(),
            hint: failure.next_step(),
        }
    }
}
