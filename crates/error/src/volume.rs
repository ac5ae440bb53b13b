//! What is in the way of using a volume.

use std::fmt;

/// What uses a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeUser {
    /// A running sandbox that writes to it.
    Writer(String),
    /// A running sandbox that reads it.
    Reader(String),
    /// A sandbox that has it, running or not.
    Sandbox(String),
    /// Another process, as one that changes the volume.
    Process,
}

impl fmt::Display for VolumeUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer(name) => write!(f, "sandbox {name} writes to it"),
            Self::Reader(name) => write!(f, "sandbox {name} reads it"),
            Self::Sandbox(name) => write!(f, "sandbox {name} uses it"),
            Self::Process => f.write_str("another process uses it"),
        }
    }
}

/// What a volume in use can't be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeWish {
    /// By a sandbox, for reading and writing.
    Write,
    /// By a sandbox, for reading.
    Read,
    /// To be resized.
    Resize,
    /// To be removed.
    Remove,
}
