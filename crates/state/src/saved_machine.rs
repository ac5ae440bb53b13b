//! The record of a machine that was saved with its memory.

use std::fs::File;
use std::sync::Arc;

use micabox_spec::Spec;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::{Stamp, layout};

/// A machine that was saved with its memory, and the settings that a copy must have as well.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct SavedMachine {
    /// Its settings; the network without published ports, which only one sandbox can have.
    pub spec: Spec,
    /// The agent's number for the first command.
    pub(crate) main: Option<u32>,
    /// The version of the protocol that the agent in its memory speaks; none if it was saved before this was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent: Option<u32>,
    /// The expected memory file, if the snapshot is kept.
    #[serde(default)]
    memory: Option<Written>,
    /// The memory that the snapshot's is a delta of, if the snapshot is ephemeral.
    #[serde(skip)]
    base: Option<Arc<File>>,
}

impl Serialize for SavedMachine {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let value = Self::serialize(self, serde_json::value::Serializer);
        let mut value = value.map_err(serde::ser::Error::custom)?;
        layout::put_beside(&mut value);
        value.serialize(to)
    }
}

impl<'de> Deserialize<'de> for SavedMachine {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(from)?;
        layout::put_inside(&mut value, &["memory_mib", "cpus", "upper"])
            .map_err(serde::de::Error::missing_field)?;
        Self::deserialize(value).map_err(serde::de::Error::custom)
    }
}

impl SavedMachine {
    /// Makes the record of a machine with these settings, whose first command has the agent's number `main`, and whose
    /// memory is a delta of `base`, if it is one.
    pub fn new(spec: Spec, main: Option<u32>, base: Option<Arc<File>>) -> Self {
        Self {
            spec,
            main,
            agent: Some(micabox_wire::VERSION),
            memory: None,
            base,
        }
    }

    /// Returns the record with which the machine continues on another machine, or that another one has sent.
    ///
    /// # Errors
    /// What it has that is on the machine where it was saved.
    pub fn elsewhere(&self) -> Result<Self, &'static str> {
        Ok(Self {
            spec: self.spec.elsewhere()?,
            main: self.main,
            agent: self.agent,
            memory: None,
            base: None,
        })
    }

    /// Returns the agent's number for the first command.
    pub fn main(&self) -> Option<u32> {
        self.main
    }

    /// Returns the version of the protocol that its agent speaks, if that is known.
    pub fn agent(&self) -> Option<u32> {
        self.agent
    }

    /// Returns the memory file as it was written, if the snapshot is kept.
    pub fn written(&self) -> Option<&Written> {
        self.memory.as_ref()
    }

    /// Records the memory file of a snapshot that is kept.
    pub fn set_written(&mut self, memory: Written) {
        self.memory = Some(memory);
    }

    /// Returns the memory that the snapshot's is a delta of, if the snapshot is ephemeral.
    pub fn base(&self) -> Option<&Arc<File>> {
        self.base.as_ref()
    }

    /// Returns whether the machine has a first command, which a copy can be
    /// attached to.
    pub fn has_first_command(&self) -> bool {
        self.main.is_some()
    }
}

/// The identity of a file as it was written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Written {
    /// SHA-256 of the length, and of offset and bytes of each page that is not zero, in hexadecimal digits.
    pub sha256: String,
    /// While the stamp is the same, the contents need not be read.
    pub stamp: Stamp,
}
