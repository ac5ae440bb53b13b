//! The record of a sandbox.

use std::fmt;

use micabox_error::Error;
use micabox_spec::network::Publish;
use micabox_spec::{BackendChoice, Command, MountSource, Root, Spec, Transport, Upper};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{ProcessId, layout};
use crate::BaseName;

/// The record of a sandbox: `state.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(remote = "Self")]
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
    /// Nanoseconds of that, which order sandboxes of one second.
    #[serde(default, skip_serializing_if = "is_default")]
    pub created_nanos: u32,
    /// The settings of its starts.
    pub spec: Spec,
    /// How the bytes of the base reach it, in its last start: never [`Transport::Auto`].
    pub transport: Transport,
    /// Its root's lower side, in its last start.
    pub root: Root,
    /// The backend of its last start; [`BackendChoice::Auto`] in records of older versions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub backend: BackendChoice,
    /// What a command in the sandbox has unless told otherwise: the environment, user and directory
    /// that the sandbox was made with, and the terminal of the first command. Without a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaults: Option<Command>,
    /// The ports of the host that lead to it while it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Publish>,
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

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let value = Self::serialize(self, serde_json::value::Serializer);
        let mut value = value.map_err(serde::ser::Error::custom)?;
        layout::put_beside(&mut value);
        value.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Record {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(from)?;
        layout::put_inside(&mut value, &["memory_mib", "cpus"])
            .map_err(serde::de::Error::missing_field)?;
        Self::deserialize(value).map_err(serde::de::Error::custom)
    }
}

/// Returns whether a setting has its default, and so is left out of the record.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The status of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Status {
    /// It was made, and has not been started.
    Created,
    /// Its machine is being started.
    Starting,
    /// It runs.
    Running {
        /// Since when, seconds since 1970-01-01 UTC.
        since: i64,
    },
    /// It runs, but for its processors.
    Paused {
        /// Since when it runs, seconds since 1970-01-01 UTC.
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
        matches!(
            self,
            Self::Starting | Self::Running { .. } | Self::Paused { .. }
        )
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Created => f.write_str("created"),
            Self::Starting => f.write_str("starting"),
            Self::Running { .. } => f.write_str("running"),
            Self::Paused { .. } => f.write_str("paused"),
            Self::Exited { code, .. } => write!(f, "exited ({code})"),
            Self::Dead => f.write_str("dead"),
        }
    }
}

impl Record {
    /// Returns the size in bytes of the disk with its changes.
    ///
    /// # Errors
    /// [`Error::NotKept`], [`Error::InFolder`] or [`Error::InPlace`] if it has no such disk.
    pub fn disk_size(&self) -> Result<u64, Error> {
        match (&self.spec.upper, self.base.disk()) {
            (Upper::Disk { size }, _) => Ok(*size),
            (Upper::Folder { path }, _) => Err(Error::InFolder {
                name: self.name.clone(),
                path: path.into(),
            }),
            (Upper::InPlace, Some(disk)) => Err(Error::InPlace {
                name: self.name.clone(),
                path: disk.path.clone(),
            }),
            (Upper::InPlace | Upper::Tmpfs, _) => Err(self.not_kept()),
        }
    }

    /// Makes the error about a sandbox whose changes are in memory.
    pub fn not_kept(&self) -> Error {
        let name = self.name.clone();
        match self.backend {
            BackendChoice::Host => Error::NoDiskOnHost(name),
            _ => Error::NotKept(name),
        }
    }

    /// Returns whether the sandbox can be started: for the first time, or again with the changes
    /// that it has kept.
    pub fn can_start(&self) -> bool {
        self.status == Status::Created || self.spec.upper.is_kept()
    }

    /// Returns whether it can be started, and has a first command.
    pub fn can_restart(&self) -> bool {
        self.can_start() && self.spec.command.is_some()
    }

    /// Returns the number of its virtual processors, which every record has.
    pub fn cpus(&self) -> u8 {
        self.spec.machine.cpus.unwrap_or(1)
    }

    /// Returns the names of the volumes that it uses.
    pub fn volumes(&self) -> impl Iterator<Item = &str> {
        let mounts = self.spec.setup.mounts.iter();
        mounts.filter_map(|mount| match &mount.source {
            MountSource::Volume(volume) => Some(volume.name.as_str()),
            MountSource::Tmpfs(_) | MountSource::Image(_) | MountSource::Bind(_) => None,
        })
    }

    /// Returns the names of the volumes that are removed with it.
    pub fn own_volumes(&self) -> impl Iterator<Item = &str> {
        let mounts = self.spec.setup.mounts.iter();
        mounts.filter_map(|mount| match &mount.source {
            MountSource::Volume(volume) if volume.anonymous => Some(volume.name.as_str()),
            _ => None,
        })
    }

    /// Returns whether a process that the sandbox ends with is gone, so that the sandbox ends about
    /// now.
    pub fn is_orphaned(&self) -> bool {
        self.status.is_live() && self.is_without_owner()
    }

    /// As [`Record::is_orphaned`], whatever is on record about its end.
    pub fn is_without_owner(&self) -> bool {
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
