//! The owner of a sandbox: what holds its machine, talks to its agent, runs its network, and
//! serves clients on a socket in the sandbox's directory.
//!
//! One event loop ([`serve`]) does all of that. A client connects ([`Client`]), starts commands,
//! and hands over descriptors for their streams or has them in frames; [`protocol`] is what the
//! two say to each other. A client that dies takes with it what it did not detach.

#![forbid(unsafe_code)]

mod client;
mod descriptor;
mod guest;
mod lost;
pub mod process;
pub mod protocol;
mod serve;
pub mod socket;

pub use client::{Client, wait};
pub use lost::{Lost, LostReason};
pub use serve::{Launch, Outcome, Registrar, Start, serve};
