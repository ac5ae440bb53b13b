//! Snapshots that E2B's clients have made: what is noted with them, by which others are told apart.

use micabox::{Sandboxes, Snapshot};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::label::{Label, NAME};

/// The note, in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The ID of the sandbox that was saved.
    pub sandbox: String,
    /// The options of all sandboxes with which that one was made.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
}

impl Saved {
    /// Begins the note of a new snapshot.
    pub fn new(sandbox: &str, label: &Label) -> Self {
        Self {
            sandbox: sandbox.to_owned(),
            options: label.options.clone(),
        }
    }

    /// Reads a snapshot's note; None if it is not one of ours.
    pub fn of(snapshot: &Snapshot) -> Option<Self> {
        serde_json::from_str(snapshot.labels.get(NAME)?).ok()
    }

    /// The note's text.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Returns whether a client has made this snapshot.
pub fn is_ours(snapshot: &Snapshot) -> bool {
    Saved::of(snapshot).is_some()
}

/// Finds a client's snapshot by its name.
pub fn find(all: &Sandboxes, name: &str) -> Option<Snapshot> {
    all.snapshot(name).ok().filter(is_ours)
}
