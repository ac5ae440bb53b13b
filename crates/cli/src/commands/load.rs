//! `mica load`

use std::path::PathBuf;

use micabox_image::{LoadOptions, Platform, Reference};
use serde_json::json;

use crate::output::{print, print_json};
use crate::{Outcome, bars, settings};

/// Load images from an archive or a layout directory
///
/// Takes OCI layout directories, OCI archives and what `docker save` writes, compressed
/// or not; `-` reads an archive from stdin.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name for the image in place of the ones in the archive
    #[arg(long, value_name = "REFERENCE")]
    name: Option<Reference>,

    /// Platform of the images [default: this machine's]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<Platform>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// File or directory
    path: PathBuf,
}

/// Loads images.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    let options = LoadOptions {
        platform: args.platform.clone(),
        settings: settings::for_images()?,
    };
    let images = {
        let progress = bars::watch(&args.path.display().to_string());
        micabox_image::load(&store, &args.path, args.name.as_ref(), &options, &*progress)?
    };
    if args.json {
        let images = images.iter().map(|image| {
            json!({
                "reference": image.reference.as_ref().map(ToString::to_string),
                "manifest_digest": image.manifest_digest,
                "config_digest": image.config_digest,
                "layers": image.layers.len(),
            })
        });
        print_json(&images.collect::<Vec<_>>())?;
        return Ok(0);
    }
    for image in images {
        let digest = image.manifest_digest;
        match image.reference {
            Some(reference) => print(&format!("{} {digest}\n", reference.familiar()))?,
            None => print(&format!("{digest}\n"))?,
        }
    }
    Ok(0)
}
