//! The record of a sandbox.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ProcessId;
use crate::plan::{Root, Transport};
use crate::{BaseName, Error, Spec, Upper};

/// The record of a sandbox: `state.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// 32 hexadecimal digits, random.
    pub id: String,
    /// Unique among all records.
    pub name: String,
    /// What it was made from.
    #[serde(flatten)]
    pub base: BaseName,
    /// The first command, quoted for a shell.
    pub command: String,
    /// When it was created, seconds since 1970-01-01 UTC.
    pub created: i64,
    /// Guest RAM in MiB.
    pub memory_mib: u32,
    /// Virtual processors.
    pub cpus: u8,
    /// How the bytes of the base reach it, in its last start: never [`Transport::Auto`].
    pub transport: Transport,
    /// Its root's lower side, in its last start.
    pub root: Root,
    /// Where its changes are.
    #[serde(default)]
    pub upper: Upper,
    /// The settings of its starts, if it can be started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Spec>,
    /// Whether the sandbox's directory, with this record, is removed after its end.
    pub auto_remove: bool,
    /// The owner. While the sandbox starts: its creator.
    pub owner: Option<ProcessId>,
    /// The process that made or started it, for as long as it ends with that: none once it is
    /// detached.
    #[serde(default)]
    pub creator: Option<ProcessId>,
    /// The process that runs its machine.
    pub machine: Option<ProcessId>,
    /// Its status.
    pub status: Status,
}

/// The status of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Status {
    /// Its machine is being started.
    Starting,
    /// It runs.
    Running {
        /// Since when, seconds since 1970-01-01 UTC.
        since: i64,
    },
    /// It has ended, or its start failed.
    Exited {
        /// The first command's exit code.
        code: i32,
        /// When it ended, seconds since 1970-01-01 UTC.
        at: i64,
        /// What went wrong, if anything.
        error: Option<String>,
    },
    /// Its owner died without recording an end.
    Dead,
}

impl Status {
    /// Returns whether there is, or is about to be, a machine.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Starting | Self::Running { .. })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("starting"),
            Self::Running { .. } => f.write_str("running"),
            Self::Exited { code, .. } => write!(f, "exited ({code})"),
            Self::Dead => f.write_str("dead"),
        }
    }
}

impl Record {
    /// Returns the size in bytes of the disk with its changes.
    ///
    /// # Errors
    /// [`Error::NotKept`] or [`Error::InPlace`] if it has no such disk.
    pub(crate) fn disk_size(&self) -> Result<u64, Error> {
        match (self.upper, self.base.disk()) {
            (Upper::Disk { size }, _) => Ok(size),
            (Upper::InPlace, Some(disk)) => Err(Error::InPlace {
                name: self.name.clone(),
                path: disk.path.clone(),
            }),
            (Upper::InPlace | Upper::Tmpfs, _) => Err(Error::NotKept(self.name.clone())),
        }
    }

    /// Returns whether a process that the sandbox ends with is gone, so that the sandbox ends about
    /// now.
    pub fn is_orphaned(&self) -> bool {
        self.status.is_live() && self.is_without_owner()
    }

    /// As [`Record::is_orphaned`], whatever is on record about its end.
    pub(crate) fn is_without_owner(&self) -> bool {
        [self.owner, self.creator]
            .into_iter()
            .flatten()
            .any(ProcessId::has_ended)
    }

    /// Returns the first 12 digits of the ID, enough for people.
    pub fn short_id(&self) -> &str {
        self.id.get(..12).unwrap_or(&self.id)
    }
}
