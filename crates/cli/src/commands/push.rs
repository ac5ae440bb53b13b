//! `mica push`

use std::sync::Arc;

use micabox_image::progress::Silent;
use micabox_image::{Compression, Progress, Reference};
use micabox_transfer::{PushOptions, push_blocking, push_start_order_blocking};
use serde_json::json;

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, print_json};
use micabox_program::{bars, settings};

/// Push an image to a registry
///
/// Layers that the registry has are not sent; others are rebuilt from the store, with their
/// original diff IDs. Credentials are those of `mica login`
/// and `docker login`, credential helpers included.
///
/// The digest that it prints is the registry's. It is the store's if the registry had all layers
/// as they were pulled; layers that are rebuilt are packed anew and have other blobs.
///
/// With --erofs the tag names an index of two forms of the image, whose digest is printed: the
/// archives, which all clients take, and EROFS images in chunks that can be read one by one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Compression of layers that the registry lacks: gzip, zstd or none
    #[arg(long, value_name = "HOW", default_value_t)]
    compression: Compression,

    /// Send the layers as EROFS images as well (EROFS image specification)
    #[arg(long)]
    erofs: bool,

    /// Send nothing but the order in which the last start with --lazy read the image's layers: later ones
    /// fetch them in that order
    #[arg(long, conflicts_with_all = ["compression", "erofs", "destination"])]
    start_order: bool,

    /// Say nothing meanwhile
    #[arg(short, long)]
    quiet: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// The image: a name or a digest
    #[arg(value_name = "IMAGE")]
    image: String,

    /// The destination: NAME or NAME:TAG [default: the image's name]
    #[arg(value_name = "DESTINATION")]
    destination: Option<Reference>,
}

/// Pushes both forms of an image, for `mica convert`.
pub fn both_forms(image: &str, target: &Reference, quiet: bool, json: bool) -> Outcome {
    execute(&Args {
        compression: Compression::default(),
        erofs: true,
        start_order: false,
        quiet,
        json,
        image: image.to_owned(),
        destination: Some(target.clone()),
    })
}

/// Checks the destination: a name without registry and user means Docker's own images, which only
/// Docker can push.
fn check(args: &Args) -> Option<Failure> {
    let typed = match &args.destination {
        Some(destination) => destination.familiar(),
        None => args.image.clone(),
    };
    let name: Reference = typed.parse().ok()?;
    let is_short = !typed.contains('/') && name.digest().is_none();
    let failure = || {
        let (registry, repository) = (name.registry(), name.repository());
        Failure::new(format!(
            "cannot push `{typed}`: without a registry, it means {registry}/{repository}, which is \
             Docker's own"
        ))
        .hint(format!(
            "name one: `mica push {0} REGISTRY/NAME`, or USER/NAME on {registry}",
            args.image
        ))
    };
    is_short.then(failure)
}

/// Pushes an image.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    if let Some(failure) = check(args) {
        // A missing image is the first error to report.
        store.image(&args.image)?;
        return Err(failure);
    }
    let mut options = PushOptions::new(settings::settings()?);
    options.compression = args.compression;
    options.erofs = args.erofs;
    if args.start_order {
        let name = push_start_order_blocking(&store, &args.image, &options)?;
        if args.json {
            print_json(&json!({"reference": name.to_string()}))?;
        } else {
            print(&format!("{name}\n"))?;
        }
        return Ok(0);
    }
    let pushed = {
        let progress: Arc<dyn Progress> = if args.quiet {
            Arc::new(Silent)
        } else {
            bars::watch_pushing(&args.image)
        };
        push_blocking(
            &store,
            &args.image,
            args.destination.as_ref(),
            &options,
            progress,
        )?
    };
    if args.json {
        let mut result = json!({
            "reference": pushed.reference.to_string(),
            "manifest_digest": pushed.manifest_digest,
            "layers": pushed.layers,
            "present": pushed.present,
        });
        if let Some(erofs) = &pushed.erofs {
            result["erofs_manifest_digest"] = json!(erofs.manifest_digest);
            result["index_digest"] = json!(erofs.index_digest);
        }
        print_json(&result)?;
    } else {
        let name = pushed.reference.familiar();
        let digest = match &pushed.erofs {
            Some(erofs) => erofs.index_digest,
            None => pushed.manifest_digest,
        };
        print(&format!("{name} {digest}\n"))?;
    }
    Ok(0)
}
