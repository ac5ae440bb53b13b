//! Serves commands: from a host's `Exec` to its `Exited`.
//!
//! One thread runs one poll loop. The server never blocks on a command, on the host or on the
//! image's files, and holds a bounded number of bytes for each command.

mod calls;
mod channel;
pub(crate) mod child;
mod command;
mod confinement;
mod connect;
mod environment;
mod files;
mod filter;
mod processes;
mod program;
mod server;
mod spawn;
mod start;
mod stdio;
pub(crate) mod user;
mod watches;

pub(crate) use child::last_errno;
pub(crate) use program::describe;

pub use channel::Channel;
pub use server::{Server, Stop};
pub use spawn::{PidNamespace, Place, Sandbox};
