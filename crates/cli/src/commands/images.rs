//! `mica images`

use micabox_image::store::ImageSummary;

use crate::output::{Table, print, print_json, size};
use crate::{Outcome, settings};

/// List images
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print only digests
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,

    /// Print all fields as JSON
    #[arg(long)]
    json: bool,
}

/// Lists images.
pub fn execute(args: &Args) -> Outcome {
    let images = settings::store()?.images()?;
    if args.json {
        print_json(&images)?;
    } else if args.quiet {
        let digests = images
            .iter()
            .map(|image| format!("{}\n", image.manifest_digest));
        print(&digests.collect::<String>())?;
    } else {
        print(&table(&images))?;
    }
    Ok(0)
}

fn table(images: &[ImageSummary]) -> String {
    let mut rows = Vec::new();
    for image in images {
        let mut names: Vec<_> = image
            .references
            .iter()
            .map(|name| name.familiar())
            .collect();
        if names.is_empty() {
            names.push("<none>".into());
        }
        for name in names {
            rows.push([
                name,
                short(&image.manifest_digest.hex()),
                image.platform.clone(),
                image.layers.to_string(),
                size(image.size),
            ]);
        }
    }
    rows.sort();
    let mut table = Table::new(&["IMAGE", "DIGEST", "PLATFORM", ">LAYERS", ">SIZE"]);
    for row in rows {
        table.row(row);
    }
    table.render()
}

fn short(hex: &str) -> String {
    hex.get(..12).unwrap_or(hex).to_owned()
}
