//! `mica pull`

use std::sync::Arc;

use clap::ValueEnum;
use micabox_image::progress::Silent;
use micabox_image::{Platform, Progress, Reference};
use micabox_transfer::{PullOptions, PullPolicy, pull_blocking};
use serde_json::json;

use crate::failure::Failure;
use crate::output::{print, print_json, warn_json};
use crate::progress::Reports;
use crate::run::{OrNone, empty_or, platform};
use crate::{Outcome, bars, settings};

/// Pull an image from a registry
///
/// Layers in the store are not fetched again. Credentials are Docker's: those
/// of `mica login` and `docker login`, credential helpers included.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Platform of the image [default: this machine's]
    #[arg(long, value_name = "OS/ARCH", value_parser = empty_or(platform))]
    platform: Option<OrNone<Platform>>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// Say nothing meanwhile
    #[arg(short, long, conflicts_with = "progress")]
    quiet: bool,

    /// What stderr has meanwhile
    #[arg(long, value_name = "KIND", default_value = "auto")]
    progress: Shown,

    /// The image: NAME, NAME:TAG or NAME@DIGEST
    #[arg(value_name = "IMAGE")]
    image: Reference,
}

/// `--progress`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shown {
    /// Bars on a terminal, otherwise only what is worth a notice.
    Auto,
    /// For programs: an object a line, as docs/protocol.md describes it, ten a second at most while bytes arrive.
    Json,
}

/// Pulls an image.
pub fn execute(args: Args) -> Outcome {
    let store = settings::store()?;
    let mut options = PullOptions::new(settings::settings()?);
    options.platform = args.platform.flatten();
    options.policy = PullPolicy::Always;
    let name = args.image.familiar();
    let image = {
        let progress: Arc<dyn Progress> = match args.progress {
            _ if args.quiet => Arc::new(Silent),
            Shown::Auto => bars::watch(&name),
            Shown::Json => Arc::new(Reports::new(|report| warn_json(&report))),
        };
        pull_blocking(&store, &args.image, &options, progress).map_err(Failure::from)?
    };
    if args.json {
        print_json(&json!({
            "reference": args.image.to_string(),
            "manifest_digest": image.manifest_digest,
            "config_digest": image.config_digest,
            "layers": image.layers.len(),
        }))?;
    } else {
        print(&format!("{}\n", image.manifest_digest))?;
    }
    Ok(0)
}
