//! `mica load`

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use micabox::words::OrNone;
use micabox_image::progress::Silent;
use micabox_image::{LoadOptions, Platform, Progress, Reference};
use rustix::fs::FileType;
use serde_json::json;

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, print_json};
use micabox_program::{bars, settings};

/// Load images from an archive or a layout directory
///
/// Takes OCI layout directories, OCI archives and what `docker save` writes, compressed
/// or not. Without a file it reads an archive from stdin. What isn't an image, such as a signature,
/// is left out with a notice.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name for the image in place of the ones in the archive
    #[arg(long, value_name = "REFERENCE")]
    name: Option<Reference>,

    /// Platform of the images [default: this machine's]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<OrNone<Platform>>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// Say nothing meanwhile
    #[arg(short, long)]
    quiet: bool,

    /// File or directory, as Docker has it
    #[arg(short, long, value_name = "FILE", conflicts_with = "path")]
    input: Option<PathBuf>,

    /// File or directory [default: stdin]
    path: Option<PathBuf>,
}

fn stdin_is_device() -> bool {
    let stat = rustix::fs::fstat(io::stdin());
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
}

/// Loads images.
pub fn execute(args: &Args) -> Outcome {
    let given = args.path.as_ref().or(args.input.as_ref());
    let path = match given {
        Some(path) => path.as_path(),
        None if io::stdin().is_terminal() => {
            return Err(Failure::new("no archive: stdin is a terminal")
                .hint("name a file, `mica load FILE`, or send one, `mica load <FILE`"));
        }
        // Such as /dev/null, which a service has.
        None if stdin_is_device() => {
            return Err(Failure::new("no archive came on stdin: it is a device")
                .hint("name a file, `mica load FILE`, or send one, `mica load <FILE`"));
        }
        None => Path::new("-"),
    };
    let store = settings::store()?;
    let options = LoadOptions {
        platform: args.platform.clone().and_then(|OrNone(platform)| platform),
        settings: settings::for_images()?,
    };
    let images = {
        let progress: Arc<dyn Progress> = if args.quiet {
            Arc::new(Silent)
        } else {
            bars::watch(&path.display().to_string())
        };
        micabox_image::load(&store, path, args.name.as_ref(), &options, &*progress)?
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
