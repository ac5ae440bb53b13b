//! `mica diff`

use std::io::{self, BufWriter, Write};

use serde::Serialize;

use super::changed::Changed;
use super::notes;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{json_name, raw};
use micabox_program::{settings, visible};

/// Bytes per write.
const PIECE: usize = 64 << 10;

/// List a sandbox's changes, or those in a mounted tree: A added, C changed, D deleted
///
/// Reads the sandbox's disk, running or not; nothing is mounted. A running sandbox is paused
/// for a moment. A tree was mounted with `mica mount --rw`. Names have escapes as in the shell's $'...' (`\n`, `\x1b`, `\xff`,
/// `\\`); in JSON, one that is not UTF-8 has its bytes in `path_hex`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Name or ID; or the directory that a tree is mounted on
    #[arg(value_name = "SANDBOX|MOUNTPOINT")]
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
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    let changed = Changed::find(&sandboxes, &args.sandbox)?;
    let mut stdout = BufWriter::with_capacity(PIECE, raw::stdout());
    let mut count = 0_u64;
    let told = changed.diff(|change| {
        let kind = change.kind.to_string();
        count += 1;
        if !args.json {
            return writeln!(stdout, "{kind} {}", visible::name(change.path));
        }
        let (path, path_hex) = json_name(change.path);
        let entry = serde_json::to_string_pretty(&Json {
            kind,
            path,
            path_hex,
        })?;
        let entry = visible::json(&entry).replace('\n', "\n  ");
        let before = if count == 1 { "[" } else { "," };
        write!(stdout, "{before}\n  {entry}")
    });
    let notes = match told {
        Err(micabox::Error::System { source, .. })
            if source.kind() == io::ErrorKind::BrokenPipe =>
        {
            return Ok(0);
        }
        told => told?,
    };
    let end = match (args.json, count) {
        (false, _) => "",
        (true, 0) => "[]\n",
        (true, _) => "\n]\n",
    };
    let written = write!(stdout, "{end}").and_then(|()| stdout.flush());
    notes::print(&notes, &args.sandbox);
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::of(&error).context("writing to stdout"))
        }
        _ => Ok(0),
    }
}
