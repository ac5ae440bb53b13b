//! Changes of files in the words of E2B's clients.

use micabox::{FileChange, FileEvent};
use serde::Serialize;

use super::entry::Entry;

/// A change.
#[derive(Debug, Serialize)]
pub struct Event {
    /// The path, from the directory.
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// What the file is now, if the client wants that and it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<Entry>,
}

impl Event {
    /// Returns the event that clients hear of a change; None if they know none for it.
    pub fn of(event: &FileEvent) -> Option<Self> {
        let kind = match event.change {
            FileChange::Created | FileChange::MovedTo => "EVENT_TYPE_CREATE",
            FileChange::Modified => "EVENT_TYPE_WRITE",
            FileChange::Attributes => "EVENT_TYPE_CHMOD",
            FileChange::Removed => "EVENT_TYPE_REMOVE",
            FileChange::MovedFrom => "EVENT_TYPE_RENAME",
            // Each write was told.
            FileChange::Written | FileChange::Overflow => return None,
        };
        // Of the directory itself, clients hear its name as they gave it.
        Some(Self {
            name: event.path.to_string_lossy().into_owned(),
            kind,
            entry: None,
        })
    }
}
