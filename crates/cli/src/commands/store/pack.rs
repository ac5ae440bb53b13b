//! `mica store pack` and `mica store unpack`

use std::time::Duration;

use micabox::words::Period;
use micabox::{Kept, KeptChoice, KeptReport, Sandboxes};
use micabox_image::store::{PackChoice, PackReport, Patience};
use serde::Serialize;

use super::counted;

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, print_json, size};
use micabox_program::{bars, packing};

/// Keep what is not in use compressed, and equal parts of all of it once: images, snapshots, volumes
///
/// A packed image is used as any other: its next start reads what it needs from what is packed, and unpacks the image
/// in the background. A packed snapshot or volume is unpacked by what uses it next. Layers of images that a sandbox, a
/// snapshot or a mount holds stay as they are, and so do snapshots and volumes that are open, and what would hardly become
/// smaller.
#[derive(Debug, clap::Args)]
pub struct PackArgs {
    /// Images to pack
    #[arg(value_name = "IMAGE", required_unless_present_any = ["all", "unused_for", "snapshot", "volume"])]
    images: Vec<String>,

    /// Pack a snapshot
    #[arg(long, value_name = "NAME")]
    snapshot: Vec<String>,

    /// Pack a volume
    #[arg(long, value_name = "NAME")]
    volume: Vec<String>,

    /// Pack all images, snapshots and volumes
    #[arg(short, long, conflicts_with_all = ["images", "snapshot", "volume", "unused_for"])]
    all: bool,

    /// Pack images that nothing was started from, and snapshots and volumes that nothing used, for so long, such as 12h
    /// or 7d
    #[arg(long, value_name = "TIME", conflicts_with_all = ["images", "snapshot", "volume"])]
    unused_for: Option<Period>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// This is a process in the background
    #[arg(long, hide = true)]
    background: bool,

    /// This process starts the one in the background, and ends
    #[arg(long, hide = true)]
    starts_another: bool,
}

/// Unpack images, snapshots and volumes now, in place of at their next use
#[derive(Debug, clap::Args)]
pub struct UnpackArgs {
    /// Images to unpack
    #[arg(value_name = "IMAGE", required_unless_present_any = ["snapshot", "volume"])]
    images: Vec<String>,

    /// Unpack a snapshot
    #[arg(long, value_name = "NAME")]
    snapshot: Vec<String>,

    /// Unpack a volume
    #[arg(long, value_name = "NAME")]
    volume: Vec<String>,
}

/// Returns snapshots and volumes of these names.
fn kept(snapshots: &[String], volumes: &[String]) -> Vec<Kept> {
    let snapshots = snapshots.iter().cloned().map(Kept::Snapshot);
    let volumes = volumes.iter().cloned().map(Kept::Volume);
    snapshots.chain(volumes).collect()
}

/// What was packed, as scripts see it.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    layers: PackReport,
    /// Bytes of blocks that unpacked layers have in common, on a filesystem where files can.
    common: u64,
    /// Snapshots and volumes.
    kept: KeptReport,
}

impl PackArgs {
    /// Starts another process that packs in the background, if this one is to, and returns whether it did. That one leaves
    /// the directory that it was started from, and the processor to others.
    pub fn begin(&self) -> bool {
        if self.starts_another {
            let seconds = self
                .unused_for
                .map_or(Duration::ZERO, |Period(time)| time)
                .as_secs();
            let mut other =
                packing::mica(&["--background", "--unused-for", &format!("{seconds}s")]);
            let _ = other.spawn();
            return true;
        }
        if self.background {
            let _ = rustix::process::setsid();
            let _ = rustix::process::chdir("/");
            let _ = rustix::process::nice(19);
        }
        false
    }
}

/// Packs layers, snapshots and volumes, and prints what that saves.
pub fn pack(sandboxes: &Sandboxes, args: &PackArgs) -> Outcome {
    let named = kept(&args.snapshot, &args.volume);
    let is_all = args.images.is_empty() && named.is_empty();
    // All, unless there is a time.
    let time = args.unused_for.map_or(Duration::ZERO, |Period(time)| time);
    let patience = if args.background {
        Patience::Leave
    } else {
        Patience::Wait
    };
    // Layers first: snapshots and volumes may have the same chunks.
    let layers = if is_all || !args.images.is_empty() {
        pack_images(sandboxes, args, time, patience)?
    } else {
        PackReport::default()
    };
    // It reads all of them, which is not for the background.
    let common = if is_all && !args.background {
        sandboxes.store().share_blocks()?
    } else {
        0
    };
    let (choice, what) = if is_all {
        let (volumes, what) = if args.background {
            (false, "snapshots")
        } else {
            (true, "snapshots and volumes")
        };
        (KeptChoice::UnusedFor { time, volumes }, what.to_owned())
    } else {
        let what: Vec<_> = named.iter().map(Kept::to_string).collect();
        (KeptChoice::Named(named), what.join(", "))
    };
    let kept = sandboxes.pack(&choice, patience, &*bars::watch_packing(&what))?;
    let damaged = (layers.damaged.len(), kept.damaged.len());
    if args.json {
        print_json(&Shown {
            layers,
            common,
            kept,
        })?;
    } else {
        let images = is_all || !args.images.is_empty();
        let mut text = if images { text(&layers) } else { String::new() };
        if common > 0 {
            text.push_str(&format!(
                "{} of blocks that unpacked layers have in common\n",
                size(common)
            ));
        }
        print(&(text + &text_of_kept(&kept)))?;
    }
    match damaged {
        (0, 0) => Ok(0),
        (0, damaged) => {
            let what = counted(damaged, "snapshot");
            Err(Failure::new(format!(
                "{what} of which the memory has other bytes than were written: make them again"
            )))
        }
        (damaged, _) => {
            let layers = counted(damaged, "layer");
            let problem =
                format!("the store is damaged: {layers} of other bytes than were written");
            Err(Failure::new(problem).hint("`mica store fsck` finds them"))
        }
    }
}

fn pack_images(
    sandboxes: &Sandboxes,
    args: &PackArgs,
    time: Duration,
    patience: Patience,
) -> Result<PackReport, Failure> {
    let store = sandboxes.store();
    let (choice, what) = if args.images.is_empty() {
        (PackChoice::UnusedFor(time), "the store's images".to_owned())
    } else {
        let digest = |name: &String| Ok(store.image(name)?.manifest_digest);
        let digests: Result<_, Failure> = args.images.iter().map(digest).collect();
        (PackChoice::Images(digests?), args.images.join(", "))
    };
    Ok(store.pack(&choice, patience, &*bars::watch_packing(&what))?)
}

fn text(report: &PackReport) -> String {
    let layers = |layers: &[_]| counted(layers.len(), "layer");
    let mut text = format!("{} packed", layers(&report.packed));
    if !report.packed.is_empty() {
        let (before, added) = (size(report.before), size(report.added));
        text.push_str(&format!(": {before} freed, {added} added"));
    }
    text.push('\n');
    if !report.in_use.is_empty() {
        let line = "of images that a sandbox, a snapshot or a mount holds: not packed\n";
        text.push_str(&format!("{} {line}", layers(&report.in_use)));
    }
    if !report.incompressible.is_empty() {
        let line = "that would hardly become smaller: not packed\n";
        text.push_str(&format!("{} {line}", layers(&report.incompressible)));
    }
    text
}

/// Returns what became of snapshots and volumes, a line each; nothing if there was nothing to do.
fn text_of_kept(report: &KeptReport) -> String {
    let mut text = String::new();
    for kept in &report.packed {
        text.push_str(&format!("{kept}: packed\n"));
    }
    if !report.packed.is_empty() {
        let (before, added) = (size(report.before), size(report.added));
        text.push_str(&format!(
            "{} of snapshots and volumes freed, {} added\n",
            before, added
        ));
    }
    for kept in &report.in_use {
        text.push_str(&format!("{kept}: in use, not packed\n"));
    }
    for kept in &report.incompressible {
        text.push_str(&format!(
            "{kept}: would hardly become smaller, not packed\n"
        ));
    }
    text
}

/// Unpacks images, snapshots and volumes, up to the first that fails.
pub fn unpack(sandboxes: &Sandboxes, args: &UnpackArgs) -> Outcome {
    let store = sandboxes.store();
    for name in &args.images {
        let image = store.image(name)?;
        store.unpack(&image, &*bars::watch_unpacking(name))?;
    }
    for kept in kept(&args.snapshot, &args.volume) {
        let progress = bars::watch_unpacking(&kept.to_string());
        sandboxes.unpack(&kept, &*progress)?;
    }
    Ok(0)
}
