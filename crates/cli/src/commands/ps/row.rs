//! The fields of a sandbox for `mica ps --format`, with Docker's names.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use micabox::{Record, Status};

use crate::template::{Fields, Row, labels};
use micabox_program::output::{ago, rfc3339, since, size, span};

/// Docker's fields, those that a sandbox has.
pub const FIELDS: Fields = &[
    ("ID", "ID"),
    ("Names", "NAME"),
    ("Image", "IMAGE"),
    ("Command", "COMMAND"),
    ("CreatedAt", "CREATED AT"),
    ("RunningFor", "CREATED"),
    ("State", "STATE"),
    ("Status", "STATUS"),
    ("Ports", "PORTS"),
    ("Size", "SIZE"),
    ("Labels", "LABELS"),
];

/// A sandbox in the list.
pub struct Ps<'a> {
    pub record: &'a Record,
    /// Whether IDs and commands are not cut.
    pub is_whole: bool,
    /// The store's directory.
    pub store: &'a Path,
}

impl Row for Ps<'_> {
    fn field(&self, name: &str) -> String {
        let record = self.record;
        match name {
            "ID" if self.is_whole => record.id.clone(),
            "ID" => record.short_id().to_owned(),
            "Names" => record.name.clone(),
            "Image" => record.base.to_string(),
            "Command" => super::command(record, self.is_whole),
            "CreatedAt" => rfc3339(record.created.try_into().unwrap_or(0)),
            "RunningFor" => ago(record.created),
            "State" => super::state(&record.status).to_owned(),
            "Status" => status(&record.status),
            "Ports" => ports(record),
            "Size" => size(on_disk(&self.store.join("sandboxes").join(&record.id))),
            "Labels" => labels(&record.spec.labels),
            _ => String::new(),
        }
    }

    fn label(&self, name: &str) -> String {
        self.record
            .spec
            .labels
            .get(name)
            .cloned()
            .unwrap_or_default()
    }
}

/// Formats a status in Docker's words.
pub fn status(status: &Status) -> String {
    match status {
        Status::Created => "Created".into(),
        Status::Starting => "Starting".into(),
        Status::Running { since: start } => format!("Up {}", span(since(*start))),
        Status::Paused { since: start } => format!("Up {} (Paused)", span(since(*start))),
        Status::Exited { code, at, .. } => format!("Exited ({code}) {}", ago(*at)),
        Status::Dead => "Dead".into(),
    }
}

fn ports(record: &Record) -> String {
    if !record.status.is_live() {
        return String::new();
    }
    let ports = record.published.iter();
    let ports: Vec<_> = ports
        .map(|port| format!("{}->{}/{}", port.host, port.guest, port.protocol))
        .collect();
    ports.join(", ")
}

/// Returns the bytes that the files of a directory have on the host's disk.
fn on_disk(directory: &Path) -> u64 {
    const BLOCK: u64 = 512;
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let blocks = entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks()));
    blocks.sum::<u64>() * BLOCK
}
