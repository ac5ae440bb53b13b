//! `mica pull`

use std::sync::Arc;

use clap::ValueEnum;
use micabox::words::OrNone;
use micabox_creation::{is_of_snapshot, pull_snapshot};
use micabox_image::progress::Silent;
use micabox_image::store::Image;
use micabox_image::{Platform, Progress, Reference, Store};
use micabox_transfer::{
    PullOptions, PullPolicy, Verified, pull_blocking, verify_conversion_blocking,
};
use serde_json::json;

use crate::commands::{convert, notes};
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, print_json, warn_json};
use micabox_program::progress::Reports;
use micabox_program::{bars, packing, settings};

/// Pull an image or a snapshot from a registry
///
/// Layers in the store are not fetched again. Credentials are Docker's: those
/// of `mica login` and `docker login`, credential helpers included.
///
/// A snapshot that `mica push` has sent comes with its image. One with memory is refused before it is fetched on a
/// machine where it can't continue. It is called as the last part of its NAME, and its TAG unless that is `latest`:
/// `mica run --from` starts it. With --lazy its memory comes when a machine reads it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Platform of the image [default: this machine's]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<OrNone<Platform>>,

    /// Fetch only what is needed to start: the rest when it is read, or by the next pull without this
    #[arg(long, conflicts_with = "verify_conversion")]
    lazy: bool,

    /// Check that the image's EROFS images are made from its archives (`mica convert --verify`)
    #[arg(long)]
    verify_conversion: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// Say nothing meanwhile
    #[arg(short, long, conflicts_with = "progress")]
    quiet: bool,

    /// What stderr has meanwhile
    #[arg(long, value_name = "KIND", default_value = "auto")]
    progress: Shown,

    /// A name for the snapshot, in place of its NAME and TAG
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = ["platform", "verify_conversion"])]
    name: Option<String>,

    /// The image or snapshot: NAME, NAME:TAG or NAME@DIGEST
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

/// Checks that what was pulled is what was verified: a name may have come to another image meanwhile.
fn check_same(name: &Reference, image: &Image, verified: &Verified) -> Result<(), Failure> {
    let forms = [verified.manifest, verified.erofs_manifest];
    if forms.contains(&image.manifest_digest) {
        return Ok(());
    }
    let problem =
        format!("{name} names another image than it did while its conversion was checked");
    Err(Failure::new(problem).hint("pull it again"))
}

/// Pulls a snapshot.
fn snapshot(
    store: &Store,
    args: &Args,
    options: &PullOptions,
    progress: &dyn Fn() -> Arc<dyn Progress>,
) -> Outcome {
    if args.platform.is_some() {
        let name = args.image.familiar();
        return Err(Failure::new(format!(
            "{name} is a snapshot: --platform is for images"
        )));
    }
    let name = args.name.as_deref();
    let (snapshot, found) = pull_snapshot(store, &args.image, name, options, progress)?;
    notes::print(&found, &snapshot.name);
    if args.json {
        let place = snapshot.places.iter().find(|place| place.pulled);
        print_json(&json!({
            "reference": args.image.to_string(),
            "manifest_digest": place.map(|place| &place.manifest),
            "snapshot": snapshot.name,
        }))?;
    } else {
        print(&format!("{}\n", snapshot.name))?;
    }
    Ok(0)
}

/// Pulls an image, or a snapshot.
pub fn execute(args: Args) -> Outcome {
    let store = settings::store()?;
    let mut options = PullOptions::new(settings::settings()?);
    options.platform = args.platform.clone().and_then(|OrNone(platform)| platform);
    options.policy = PullPolicy::Always;
    options.lazy = args.lazy;
    let name = args.image.familiar();
    let watch = || -> Arc<dyn Progress> {
        match args.progress {
            _ if args.quiet => Arc::new(Silent),
            Shown::Auto => bars::watch(&name),
            Shown::Json => Arc::new(Reports::new(|report| warn_json(&report))),
        }
    };
    let image = {
        let progress = watch();
        let verified = if args.verify_conversion {
            let progress = Arc::clone(&progress);
            let verified = verify_conversion_blocking(&store, &args.image, &options, progress);
            Some(verified.map_err(convert::failure)?)
        } else {
            None
        };
        if args.name.is_some() {
            return snapshot(&store, &args, &options, &watch);
        }
        let image = match pull_blocking(&store, &args.image, &options, progress) {
            Err(error) if is_of_snapshot(&error) => {
                return snapshot(&store, &args, &options, &watch);
            }
            image => image?,
        };
        if let Some(verified) = verified {
            check_same(&args.image, &image, &verified)?;
        }
        image
    };
    packing::after_pull(&options.settings);
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
