//! `mica store pack` and `mica store unpack`

use std::time::Duration;

use micabox::words::Period;
use micabox_image::Store;
use micabox_image::store::{PackChoice, PackReport, Patience};

use super::counted;

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, print_json, size};
use micabox_program::{bars, packing};

/// Keep images that are not in use compressed, and equal parts of all images once
///
/// A packed image is used as any other: its next start reads what it needs from what is packed, and unpacks the image
/// in the background. Layers of images that a sandbox, a snapshot or a mount holds stay as they are, and so do those that would hardly become smaller.
#[derive(Debug, clap::Args)]
pub struct PackArgs {
    /// Images to pack
    #[arg(value_name = "IMAGE", required_unless_present_any = ["all", "unused_for"])]
    images: Vec<String>,

    /// Pack all images
    #[arg(short, long, conflicts_with_all = ["images", "unused_for"])]
    all: bool,

    /// Pack images that nothing was started from for so long, such as 12h or 7d
    #[arg(long, value_name = "TIME", conflicts_with = "images")]
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

/// Unpack images now, in place of in the background of their next start
#[derive(Debug, clap::Args)]
pub struct UnpackArgs {
    /// Images to unpack
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<String>,
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

/// Packs layers, and prints what that saves.
pub fn pack(store: &Store, args: &PackArgs) -> Outcome {
    let (choice, what) = if args.images.is_empty() {
        // All, unless there is a time.
        let time = args.unused_for.map_or(Duration::ZERO, |Period(time)| time);
        (PackChoice::UnusedFor(time), "the store's images".to_owned())
    } else {
        let digest = |name: &String| Ok(store.image(name)?.manifest_digest);
        let digests: Result<_, Failure> = args.images.iter().map(digest).collect();
        (PackChoice::Images(digests?), args.images.join(", "))
    };
    let patience = if args.background {
        Patience::Leave
    } else {
        Patience::Wait
    };
    let report = store.pack(&choice, patience, &*bars::watch_packing(&what))?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&text(&report))?;
    }
    if !report.damaged.is_empty() {
        let layers = counted(report.damaged.len(), "layer");
        let problem = format!("the store is damaged: {layers} of other bytes than were written");
        return Err(Failure::new(problem).hint("`mica store fsck` finds them"));
    }
    Ok(0)
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

/// Unpacks images, up to the first that fails.
pub fn unpack(store: &Store, args: &UnpackArgs) -> Outcome {
    for name in &args.images {
        let image = store.image(name)?;
        store.unpack(&image, &*bars::watch_unpacking(name))?;
    }
    Ok(0)
}
