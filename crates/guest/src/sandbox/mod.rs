//! The environment that commands run in. [`boot`](crate::boot) makes it, and [`exec`](crate::exec) runs
//! commands in it.

pub mod child;
pub mod group;
pub mod masks;
mod place;
pub mod proc;
pub mod user;

use std::os::fd::OwnedFd;

use crate::network::Interface;

pub use place::Place;

/// The environment that commands run in.
#[derive(Debug)]
pub struct Sandbox {
    /// The files that commands see.
    pub place: Place,
    /// The PID namespace of commands.
    pub pids: PidNamespace,
    /// The host name when the sandbox was made; commands get it in HOSTNAME.
    pub hostname: String,
    /// The network interface, if any.
    pub interface: Option<Interface>,
}

/// The PID namespace that new children of the agent are born into.
#[derive(Debug)]
pub enum PidNamespace {
    /// The agent's own, for tests.
    Inherited,
    /// One whose process 1 is running; readable when that has ended.
    Started(OwnedFd),
    /// One whose process 1 will be the next child.
    Pending,
    /// One whose process 1 was a command or has ended; after its end, fork fails with ENOMEM.
    Owned,
}

impl Sandbox {
    /// Creates a sandbox in which commands run as ordinary children of this process, in its root
    /// directory.
    pub fn here() -> Self {
        Self {
            place: Place::Here,
            pids: PidNamespace::Inherited,
            hostname: "localhost".to_owned(),
            interface: None,
        }
    }
}
