//! `mica pull`

use micabox_image::{Platform, Reference};
use micabox_transfer::{PullOptions, PullPolicy, pull_blocking};
use serde_json::json;

use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::{Outcome, bars, settings};

/// Pull an image from a registry
///
/// Layers in the store are not fetched again. Credentials are Docker's: those
/// of `docker login`, credential helpers included.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Platform of the image [default: this machine's]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<Platform>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// The image: NAME, NAME:TAG or NAME@DIGEST
    #[arg(value_name = "IMAGE")]
    image: Reference,
}

/// Pulls an image.
pub fn execute(args: Args) -> Outcome {
    let store = settings::store()?;
    let mut options = PullOptions::new(settings::settings()?);
    options.platform = args.platform;
    options.policy = PullPolicy::Always;
    let name = args.image.familiar();
    let image = {
        let progress = bars::watch(&name);
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
