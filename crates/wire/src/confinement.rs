//! What limits a command.

use serde::{Deserialize, Serialize};

/// What a command may do. The default is what every command has: root keeps all capabilities, and
/// limits are the agent's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Confinement {
    /// The capabilities that root keeps, and that no program can get beyond: bit N stands for number
    /// N of capabilities(7). None for all.
    pub capabilities: Option<u64>,
    /// Resource limits, set in order.
    pub ulimits: Vec<Ulimit>,
    /// Supplementary groups beside the user's own: names, looked up in the image's `/etc/group`, or
    /// numbers.
    pub groups: Vec<String>,
}

/// A resource limit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ulimit {
    /// The kernel's number of the resource, as in getrlimit(2).
    pub resource: u32,
    /// The limit in force; None for unlimited.
    pub soft: Option<u64>,
    /// Up to which a process may raise it; None for unlimited.
    pub hard: Option<u64>,
}
