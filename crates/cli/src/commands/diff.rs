//! `mica diff`

use std::os::unix::ffi::OsStrExt;

use micabox::Base;
use serde_json::json;

use crate::output::{print, print_json};
use crate::{Outcome, settings};

/// List what a sandbox has changed: A added, C changed, D deleted
///
/// Reads the sandbox's disk, running or not; nothing is mounted. A running sandbox stands
/// still for a moment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// For scripts
    #[arg(long)]
    json: bool,

    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
}

/// Lists changes.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let record = sandboxes.get(&args.sandbox)?;
    let disk = sandboxes.still_disk(&record.id)?;
    let changes = disk.changes(&Base::of(&store, &record)?)?;
    let path = |bytes: &[u8]| {
        std::ffi::OsStr::from_bytes(bytes)
            .to_string_lossy()
            .into_owned()
    };
    if args.json {
        let changes = changes
            .iter()
            .map(|change| json!({"kind": change.kind.to_string(), "path": path(&change.path)}));
        print_json(&changes.collect::<Vec<_>>())?;
    } else {
        let lines = changes
            .iter()
            // No control characters on a terminal.
            .map(|change| format!("{} {}\n", change.kind, escape(&path(&change.path))));
        print(&lines.collect::<String>())?;
    }
    Ok(0)
}

fn escape(path: &str) -> String {
    let escaped = path.chars().map(|c| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    });
    escaped.collect()
}
