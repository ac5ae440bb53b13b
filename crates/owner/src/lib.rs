//! The owner of a sandbox: it holds the machine, talks to the agent, runs the network, and serves
//! clients on a socket in the sandbox's directory.
//!
//! One event loop ([`serve`]) does all of that. A client connects ([`Client`]), starts commands,
//! and hands over descriptors for their streams or receives them as frames; [`protocol`] has the
//! messages between the two. When a client dies, the owner kills the client's commands that are not
//! detached.

#![forbid(unsafe_code)]

mod client;
mod descriptor;
mod guest;
mod lost;
pub mod process;
pub mod protocol;
mod serve;
pub mod socket;

pub use client::{Client, Sender, wait};
pub use lost::{Lost, LostReason, forget_stop, stop_start};
pub use serve::{
    FLUSH_TIMEOUT, LAG, Launch, Learn, Network, Outcome, Registrar, SHUTDOWN_TIMEOUT, Start, serve,
};
