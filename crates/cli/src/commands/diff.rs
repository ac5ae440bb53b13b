//! `mica diff`

use micabox::Base;
use serde::Serialize;

use crate::output::{json_name, print, print_json};
use crate::{Outcome, settings, visible};

/// List what a sandbox has changed: A added, C changed, D deleted
///
/// Reads the sandbox's disk, running or not; nothing is mounted. A running sandbox stands
/// still for a moment. Names have escapes as in the shell's $'...' (`\n`, `\x1b`, `\xff`,
/// `\\`); in JSON, one that is not UTF-8 has its bytes in `path_hex`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// For scripts
    #[arg(long)]
    json: bool,

    /// Name or ID
    #[arg(value_name = "SANDBOX")]
    sandbox: String,
}

#[derive(Serialize)]
struct Json {
    kind: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
}

/// Lists changes.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let record = sandboxes.get(&args.sandbox)?;
    let disk = sandboxes.still_disk(&record.id)?;
    let changes = disk.changes(&Base::of(&store, &record)?)?;
    if args.json {
        let changes = changes.iter().map(|change| {
            let kind = change.kind.to_string();
            let (path, path_hex) = json_name(&change.path);
            Json {
                kind,
                path,
                path_hex,
            }
        });
        print_json(&changes.collect::<Vec<_>>())?;
    } else {
        let lines = changes
            .iter()
            .map(|change| format!("{} {}\n", change.kind, visible::name(&change.path)));
        print(&lines.collect::<String>())?;
    }
    Ok(0)
}
