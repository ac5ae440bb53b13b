//! What a sandbox's owner is asked for and what it answers, without I/O: the blocking client and the asynchronous one
//! drive the same requests and read the same replies.

#![forbid(unsafe_code)]

mod command;
mod file;
mod noted;
mod processes;

pub use command::{ExecOptions, Finished, Stdio, connection};
pub use file::{
    Attributes, DirectoryEntry, FILE_ANSWER_TIMEOUT, FileEvent, FileTask, LeftOut, MAX_MESSAGES,
    WriteOptions, bytes, from_bytes,
};
pub use noted::{NotedCommand, NotedCommands};
pub use processes::GuestProcess;
