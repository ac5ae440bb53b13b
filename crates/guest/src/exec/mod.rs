//! Serves commands: from a host's `Exec` to its `Exited`.
//!
//! One thread runs one poll loop. The server never blocks on a command, on the host or on the
//! image's files, and holds a bounded number of bytes for each command.

mod calls;
mod channel;
mod command;
mod confinement;
mod connect;
mod environment;
mod files;
mod filter;
mod kept;
mod processes;
mod program;
mod server;
mod spawn;
mod start;
mod stdio;
mod watches;

pub use crate::sandbox::{PidNamespace, Place, Sandbox};
pub use channel::Channel;
pub use server::{Server, Stop};
