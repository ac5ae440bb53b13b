//! What limits a command.

use serde::{Deserialize, Serialize};

/// The capabilities that root has in Docker, as bits of [`Confinement::capabilities`]: `CHOWN`,
/// `DAC_OVERRIDE`, `FOWNER`, `FSETID`, `KILL`, `SETGID`, `SETUID`, `SETPCAP`, `NET_BIND_SERVICE`, `NET_RAW`,
/// `SYS_CHROOT`, `MKNOD`, `AUDIT_WRITE`, `SETFCAP`.
pub const DOCKERS_CAPABILITIES: u64 = 0xa804_25fb;

/// What a command may do. The default is what every command has: root keeps all capabilities, on the host's
/// kernel [`DOCKERS_CAPABILITIES`], and limits are the agent's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Confinement {
    /// The capabilities that root keeps, and that no program can get beyond: bit N stands for number
    /// N of capabilities(7). None for the default.
    pub capabilities: Option<u64>,
    /// Resource limits, set in order.
    pub ulimits: Vec<Ulimit>,
    /// Supplementary groups beside the user's own: names, looked up in the image's `/etc/group`, or
    /// numbers.
    pub groups: Vec<String>,
    /// Whether no program can give more rights than its caller has: neither set-user-ID bits nor
    /// capabilities of files count (`PR_SET_NO_NEW_PRIVS`). On the host's kernel it is always so.
    pub no_new_privileges: bool,
}

/// A resource limit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ulimit {
    /// The kernel's number of the resource, as in getrlimit(2).
    pub resource: u32,
    /// The limit in force; None for unlimited.
    pub soft: Option<u64>,
    /// Up to which a process may raise it; None for unlimited.
    pub hard: Option<u64>,
}
