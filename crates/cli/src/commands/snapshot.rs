//! `mica snapshot`

use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;

use micabox::{Kept, Snapshot};
use micabox_image::Reference;
use micabox_overlay::host::WholeFile;
use serde_json::{Value, json};

use super::{notes, push};
use crate::template::{self, Fields, Row, Template};
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{ago, print, print_json, rfc3339, size};
use micabox_program::{bars, settings};

/// Copies of sandboxes' disks, or of running sandboxes, to start others from with `mica run
/// --from`
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Copy a sandbox's disk at one moment
    ///
    /// A running sandbox flushes its files, for at most ten seconds, and is paused meanwhile; what it has not
    /// flushed is missing, as after a power cut. With --memory nothing is missing: `mica run --from` continues where
    /// the sandbox was.
    Create {
        /// Save the memory and processes of a running sandbox as well
        #[arg(long)]
        memory: bool,
        /// Name or ID
        #[arg(value_name = "SANDBOX")]
        sandbox: String,
        /// Name of the snapshot
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// List snapshots
    Ls {
        /// Print only names
        #[arg(short, long, conflicts_with_all = ["json", "format"])]
        quiet: bool,
        #[arg(long, value_name = "FORMAT", conflicts_with = "json", help = template::HELP)]
        format: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a snapshot as one file, with a digest at its end, without its image
    Export {
        /// Name of the snapshot
        #[arg(value_name = "NAME")]
        name: String,
        /// File to write
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Read a snapshot from such a file; its image must be in the store
    ///
    /// If it has a root disk, name the file with `mica run --from NAME --root-disk FILE`.
    Import {
        /// File to read
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// A name in place of its own
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Push a snapshot to a registry, as `mica push` does where no image has its name
    Push {
        /// Say nothing meanwhile
        #[arg(short, long)]
        quiet: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
        /// Name of the snapshot
        #[arg(value_name = "NAME")]
        name: String,
        /// The destination: NAME or NAME:TAG
        #[arg(value_name = "DESTINATION")]
        destination: Reference,
    },
    /// Remove snapshots
    Rm {
        /// Names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

const FIELDS: Fields = &[
    ("Name", "NAME"),
    ("Image", "IMAGE"),
    ("Sandbox", "SANDBOX"),
    ("Disk", ">DISK"),
    ("Memory", ">MEMORY"),
    ("CreatedSince", "CREATED"),
    ("CreatedAt", "CREATED AT"),
];

impl Row for Snapshot {
    fn field(&self, name: &str) -> String {
        let bytes = |bytes| match bytes {
            0 => "-".to_owned(),
            bytes => size(bytes),
        };
        match name {
            "Name" => self.name.clone(),
            "Image" => self.base.to_string(),
            "Sandbox" => self.sandbox.clone(),
            "Disk" => bytes(self.size),
            "Memory" => {
                let machine = self.memory.as_ref();
                let all = bytes(machine.map_or(0, |machine| {
                    u64::from(machine.spec.machine.memory_mib) << 20
                }));
                match self.memory_part() {
                    Some(part) => format!("{all} ({} of {} here)", size(part.here), size(part.all)),
                    None => all,
                }
            }
            "CreatedSince" => ago(self.created),
            "CreatedAt" => rfc3339(self.created.try_into().unwrap_or(0)),
            _ => String::new(),
        }
    }
}

/// Returns a snapshot's record, with whether its disk or its memory is packed, and how much is here of a memory of which
/// that is only a part.
pub fn in_json(snapshot: &Snapshot) -> Value {
    let mut record = json!(snapshot);
    record["packed"] = json!(snapshot.is_packed());
    if let Some(part) = snapshot.memory_part() {
        record["memory_part"] = json!({"here": part.here, "all": part.all});
    }
    record
}

/// Runs a subcommand.
pub fn execute(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    match &args.action {
        Action::Create {
            memory,
            sandbox,
            name,
        } => {
            let snapshot = if *memory {
                sandboxes.get(sandbox)?.snapshot_with_memory(name)?
            } else {
                let (snapshot, found) = sandboxes.get(sandbox)?.snapshot(name)?;
                notes::print(&found, sandbox);
                snapshot
            };
            print(&format!("{}\n", snapshot.name))?;
            Ok(0)
        }
        Action::Ls { json: true, .. } => {
            let snapshots = sandboxes.snapshots()?;
            print_json(&snapshots.iter().map(in_json).collect::<Vec<_>>())?;
            Ok(0)
        }
        Action::Ls { quiet, format, .. } => {
            let snapshots = sandboxes.snapshots()?;
            let format = if *quiet {
                Some("{{.Name}}")
            } else {
                format.as_deref()
            };
            let table = "table {{.Name}}\t{{.Image}}\t{{.Sandbox}}\t{{.Disk}}\t{{.Memory}}\t{{.CreatedSince}}";
            let template = Template::wanted(format, FIELDS)?;
            template
                .map_or_else(|| Template::parse(table, FIELDS), Ok)?
                .print(&snapshots)?;
            Ok(0)
        }
        Action::Export { name, file } => {
            let at = |error: io::Error| {
                Failure::of(&error).context(&format!("writing {}", file.display()))
            };
            if sandboxes.snapshot(name)?.is_packed() {
                let kept = Kept::Snapshot(name.clone());
                sandboxes.unpack(&kept, &*bars::watch_unpacking(&kept.to_string()))?;
            }
            let whole = WholeFile::create(file).map_err(at)?;
            sandboxes.export_snapshot(name, &mut whole.file())?;
            whole.publish().map_err(at)?;
            Ok(0)
        }
        Action::Import { file, name } => {
            let from = File::open(file).map_err(|error| {
                Failure::of(&error).context(&format!("reading {}", file.display()))
            })?;
            let mut from = BufReader::with_capacity(1 << 20, from);
            let imported = sandboxes.import_snapshot(name.as_deref(), &mut from);
            let imported = imported.map_err(|error| match error {
                error @ micabox::Error::System { .. } => {
                    Failure::from(error).context(&file.display().to_string())
                }
                error => error.into(),
            })?;
            let (snapshot, found) = imported;
            notes::print(&found, &snapshot.name);
            print(&format!("{}\n", snapshot.name))?;
            Ok(0)
        }
        Action::Push {
            quiet,
            json,
            name,
            destination,
        } => push::snapshot(name, Some(destination), *quiet, *json),
        Action::Rm { names } => super::for_each(names, |name| {
            sandboxes.remove_snapshot(name)?;
            Ok(name.to_owned())
        }),
    }
}
