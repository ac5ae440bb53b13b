//! Changes of files in the words of E2B's clients.

use std::path::Path;

use micabox::{FileChange, FileEvent, Files};
use serde_json::{Value, json};

use super::accounts::Accounts;
use super::entry;

/// Returns the event that clients hear of a change; None if they know none for it.
pub fn of(event: &FileEvent) -> Option<Value> {
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
    Some(json!({"name": event.path.to_string_lossy(), "type": kind}))
}

/// Adds what the file is now, if it is there.
pub fn complete(told: &mut Value, event: &FileEvent, files: &Files, watched: &Path) {
    if let (Ok(entry), Some(told)) = (
        entry::of(files, &watched.join(&event.path), &Accounts::read(files)),
        told.as_object_mut(),
    ) {
        told.insert("entry".to_owned(), entry);
    }
}
