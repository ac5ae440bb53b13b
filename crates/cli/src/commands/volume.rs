//! `mica volume`

use std::collections::BTreeMap;

use micabox::words::Bytes;
use micabox::{DEFAULT_DISK_SIZE, Kept, Sandboxes, Volume};
use serde::Serialize;

use crate::template::{self, Fields, Row, Template, labels};
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{Table, ago, print, print_json, rfc3339, size};
use micabox_program::{bars, settings};

/// Disks with names, which outlive the sandboxes that use them: `mica run -v NAME:/PATH`
///
/// A volume is an ext4 filesystem in a file; one sandbox writes to it, or many read it. A new
/// one gets what the first sandbox's image has at the path.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Make a volume; it takes space on this machine only as it fills
    Create {
        /// Its size, such as 100M or 16G
        #[arg(long)]
        size: Option<Bytes>,
        /// Accepted as with Docker: there are no other drivers
        #[arg(short, long, value_name = "DRIVER", value_parser = ["local"], hide = true)]
        driver: Option<String>,
        /// A note for its users [NAME=VALUE]
        #[arg(short, long, value_name = "LABEL", value_parser = label)]
        label: Vec<(String, String)>,
        /// Name of the volume
        name: String,
    },
    /// List volumes
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
    /// Print all that is known about volumes, as JSON
    Inspect {
        /// Names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove volumes that no sandbox uses
    Rm {
        /// Don't complain about volumes that do not exist
        #[arg(short, long)]
        force: bool,
        /// Names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove all volumes that no sandbox uses
    Prune {
        /// Remove them; otherwise they are only listed
        #[arg(short, long)]
        force: bool,
    },
    /// Grow a volume that no running sandbox uses
    Resize {
        /// Name of the volume
        name: String,
        /// The new size, such as 16G
        size: Bytes,
    },
}

/// A volume, as scripts see it.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    volume: Volume,
    /// The disk's file.
    disk: String,
    /// Bytes.
    size: u64,
    /// Bytes that are allocated on the host.
    allocated: u64,
    /// Whether the disk is packed: its file is missing until something uses the volume.
    packed: bool,
    /// Names of the sandboxes that use it.
    sandboxes: Vec<String>,
}

/// Docker's fields, and those that only such a volume has.
const FIELDS: Fields = &[
    ("Name", "NAME"),
    ("Driver", "DRIVER"),
    ("Scope", "SCOPE"),
    ("Mountpoint", "MOUNTPOINT"),
    ("Labels", "LABELS"),
    ("Size", "SIZE"),
    ("Allocated", "ALLOCATED"),
    ("Links", "LINKS"),
    ("CreatedAt", "CREATED AT"),
];

impl Row for Shown {
    fn field(&self, name: &str) -> String {
        match name {
            "Name" => self.volume.name.clone(),
            "Driver" | "Scope" => "local".into(),
            "Mountpoint" => self.disk.clone(),
            "Labels" => labels(&self.volume.labels),
            "Size" => size(self.size),
            "Allocated" => size(self.allocated),
            "Links" => self.sandboxes.len().to_string(),
            "CreatedAt" => rfc3339(self.volume.created.try_into().unwrap_or(0)),
            _ => String::new(),
        }
    }

    fn label(&self, name: &str) -> String {
        self.volume.labels.get(name).cloned().unwrap_or_default()
    }
}

impl Shown {
    fn of(sandboxes: &Sandboxes, volume: Volume) -> Result<Self, Failure> {
        let (size, allocated) = volume.size()?;
        Ok(Self {
            disk: volume.disk().display().to_string(),
            size,
            allocated,
            packed: volume.is_packed(),
            sandboxes: sandboxes.users_of(&volume.name)?,
            volume,
        })
    }

    fn all(sandboxes: &Sandboxes) -> Result<Vec<Self>, Failure> {
        let volumes = sandboxes.volumes()?.into_iter();
        volumes.map(|volume| Self::of(sandboxes, volume)).collect()
    }
}

/// Runs a subcommand.
pub fn execute(args: &Args) -> Outcome {
    let sandboxes = settings::sandboxes(&settings::store()?)?;
    match &args.action {
        Action::Create {
            size, label, name, ..
        } => {
            let labels: BTreeMap<_, _> = label.iter().cloned().collect();
            let size = size.map_or(DEFAULT_DISK_SIZE, |Bytes(bytes)| bytes);
            let volume = sandboxes.create_volume(name, size, labels)?;
            print(&format!("{}\n", volume.name))?;
            Ok(0)
        }
        Action::Ls { quiet: true, .. } => {
            let volumes = sandboxes.volumes()?.into_iter();
            let names = volumes.map(|volume| volume.name + "\n");
            print(&names.collect::<String>())?;
            Ok(0)
        }
        Action::Ls { json: true, .. } => {
            print_json(&Shown::all(&sandboxes)?)?;
            Ok(0)
        }
        Action::Ls { format, .. } => {
            let volumes = Shown::all(&sandboxes)?;
            if let Some(template) = Template::wanted(format.as_deref(), FIELDS)? {
                template.print(&volumes)?;
                return Ok(0);
            }
            let mut table = Table::new(&["NAME", ">SIZE", ">ALLOCATED", "SANDBOXES", "CREATED"]);
            for shown in volumes {
                let users = shown.sandboxes.join(", ");
                table.row([
                    shown.volume.name,
                    size(shown.size),
                    if shown.packed {
                        "packed".into()
                    } else {
                        size(shown.allocated)
                    },
                    if users.is_empty() { "-".into() } else { users },
                    ago(shown.volume.created),
                ]);
            }
            print(&table.render())?;
            Ok(0)
        }
        Action::Inspect { names } => {
            let named = |name: &String| Shown::of(&sandboxes, sandboxes.volume(name)?);
            print_json(&names.iter().map(named).collect::<Result<Vec<_>, _>>()?)?;
            Ok(0)
        }
        Action::Rm { force, names } => super::for_each(names, |name| {
            match sandboxes.remove_volume(name) {
                Err(micabox::Error::NoSuchVolume(_)) if *force => {}
                removed => removed?,
            }
            Ok(name.to_owned())
        }),
        Action::Prune { force } => prune(&sandboxes, *force),
        Action::Resize { name, size } => {
            if sandboxes.volume(name)?.is_packed() {
                let kept = Kept::Volume(name.clone());
                sandboxes.unpack(&kept, &*bars::watch_unpacking(&kept.to_string()))?;
            }
            sandboxes.resize_volume(name, size.0)?;
            print(&format!("{name}\n"))?;
            Ok(0)
        }
    }
}

/// Removes or lists the volumes that no sandbox uses.
fn prune(sandboxes: &Sandboxes, is_forced: bool) -> Outcome {
    let mut unused = Vec::new();
    for shown in Shown::all(sandboxes)? {
        if shown.sandboxes.is_empty() {
            unused.push(shown.volume.name);
        }
    }
    if is_forced || unused.is_empty() {
        return super::for_each(&unused, |name| {
            sandboxes.remove_volume(name)?;
            Ok(name.to_owned())
        });
    }
    let failure = Failure::new(format!("no sandbox uses {}", unused.join(", ")));
    Err(failure.hint("`mica volume prune --force` removes them with their files"))
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    if name.is_empty() {
        return Err("a label needs a name: NAME=VALUE".into());
    }
    Ok((name.to_owned(), value.to_owned()))
}
