//! `mica push`

use std::sync::Arc;

use micabox_image::progress::Silent;
use micabox_image::{Compression, Progress, Reference, Store};
use micabox_transfer::{PushOptions, push_blocking, push_start_order_blocking};
use serde_json::json;

use super::archives;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, print_json};
use micabox_program::{bars, settings};

/// Push an image or a snapshot to a registry
///
/// Layers that the registry has are not sent; others are rebuilt from the store, with their
/// original diff IDs. Credentials are those of `mica login`
/// and `docker login`, credential helpers included.
///
/// The digest that it prints is the registry's. It is the store's if the registry had all layers
/// as they were pulled; layers that are rebuilt are packed anew and have other blobs. Of an image that was pulled with
/// --lazy the archives are fetched first.
///
/// A snapshot goes with its memory, if it has one: `mica pull` and `mica run --from NAME:TAG` take it on another
/// machine. Its image goes to the same repository, and of its chunks only those that no snapshot has there. If an
/// image and a snapshot have the same name, it is the image that is pushed: `mica snapshot push` sends the snapshot.
///
/// With --erofs the tag names an index of two forms of the image, whose digest is printed: the
/// archives, which all clients take, and EROFS images in chunks that can be read one by one.
/// containerd 2.4 takes EROFS images as a stack of layers with media types of its own: --containerd
/// gives the image a second tag, of such a stack alone, with nearly all blobs in common.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Compression of layers that the registry lacks, and of which no blob was kept: gzip, zstd or none
    #[arg(long, value_name = "HOW", default_value_t)]
    compression: Compression,

    /// Send the layers as EROFS images as well (EROFS image specification)
    #[arg(long)]
    erofs: bool,

    /// With --erofs: another tag of the destination's repository for containerd 2.4, which mounts the EROFS images as a
    /// stack of layers
    #[arg(long, value_name = "TAG", requires = "erofs")]
    containerd: Option<String>,

    /// Send nothing but the order in which the last start with --lazy read the image's layers, or the snapshot's
    /// memory: later ones fetch them in that order
    #[arg(long, conflicts_with_all = ["compression", "erofs", "destination"])]
    start_order: bool,

    /// Say nothing meanwhile
    #[arg(short, long)]
    quiet: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// The image, by a name or a digest; or the snapshot, by its name
    #[arg(value_name = "IMAGE|SNAPSHOT")]
    image: String,

    /// The destination: NAME or NAME:TAG [default: the image's name; a snapshot needs one]
    #[arg(value_name = "DESTINATION")]
    destination: Option<Reference>,
}

/// Pushes both forms of an image, for `mica convert`.
pub fn both_forms(
    image: &str,
    target: &Reference,
    containerd: Option<&str>,
    quiet: bool,
    json: bool,
) -> Outcome {
    execute(&Args {
        compression: Compression::default(),
        erofs: true,
        containerd: containerd.map(str::to_owned),
        start_order: false,
        quiet,
        json,
        image: image.to_owned(),
        destination: Some(target.clone()),
    })
}

/// Checks the destination: a name without registry and user means Docker's own images, which only
/// Docker can push.
fn check(pushed: &str, destination: Option<&Reference>) -> Option<Failure> {
    let typed = match destination {
        Some(destination) => destination.familiar(),
        None => pushed.to_owned(),
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
            "name one: `mica push {pushed} REGISTRY/NAME`, or USER/NAME on {registry}"
        ))
    };
    is_short.then(failure)
}

/// Returns whether the name is that of a snapshot, and of no image. Flags about layers are about images.
fn is_snapshot(store: &Store, args: &Args) -> Result<bool, Failure> {
    if args.erofs {
        return Ok(false);
    }
    let snapshot = settings::sandboxes(store)?.snapshot(&args.image);
    // Of an image's digest, the name may be the beginning by chance.
    let has_name = store
        .image(&args.image)
        .is_ok_and(|image| image.reference.is_some());
    Ok(snapshot.is_ok() && !has_name)
}

/// Pushes a snapshot.
pub fn snapshot(name: &str, destination: Option<&Reference>, quiet: bool, json: bool) -> Outcome {
    let store = settings::store()?;
    let Some(destination) = destination else {
        return Err(Failure::new(format!(
            "cannot push the snapshot {name}: it has no name in a registry"
        ))
        .hint(format!("name one: `mica push {name} REGISTRY/NAME`")));
    };
    if let Some(failure) = check(name, Some(destination)) {
        return Err(failure);
    }
    let options = PushOptions::new(settings::settings()?);
    let progress = || -> Arc<dyn Progress> {
        if quiet {
            Arc::new(Silent)
        } else {
            bars::watch_pushing(name)
        }
    };
    let pushed = micabox_creation::push_snapshot(&store, name, destination, &options, &progress)?;
    if json {
        print_json(&json!({
            "reference": pushed.reference.to_string(),
            "manifest_digest": pushed.manifest_digest,
            "packs": pushed.packs,
            "present": pushed.present,
            "sent": pushed.sent,
            "chunks": {
                "all": pushed.chunks.all,
                "of_others": pushed.chunks.of_others,
                "repeated": pushed.chunks.repeated,
            },
        }))?;
    } else {
        let name = pushed.reference.familiar();
        print(&format!("{name} {}\n", pushed.manifest_digest))?;
    }
    Ok(0)
}

/// Prints the name of what was pushed.
fn print_name(args: &Args, name: &Reference) -> Outcome {
    if args.json {
        print_json(&json!({"reference": name.to_string()}))?;
    } else {
        print(&format!("{name}\n"))?;
    }
    Ok(0)
}

/// Pushes an image, or a snapshot.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    if is_snapshot(&store, args)? {
        if args.compression != Compression::default() {
            let name = &args.image;
            return Err(Failure::new(format!(
                "{name} is a snapshot: --compression is for images"
            )));
        }
        if args.start_order {
            let options = PushOptions::new(settings::settings()?);
            let name = micabox_creation::push_snapshot_order(&store, &args.image, &options)?;
            return print_name(args, &name);
        }
        let destination = args.destination.as_ref();
        return snapshot(&args.image, destination, args.quiet, args.json);
    }
    if let Some(failure) = check(&args.image, args.destination.as_ref()) {
        // A missing image is the first error to report.
        store.image(&args.image)?;
        return Err(failure);
    }
    let mut options = PushOptions::new(settings::settings()?);
    options.compression = args.compression;
    options.erofs = args.erofs;
    options.containerd.clone_from(&args.containerd);
    if args.start_order {
        let name = push_start_order_blocking(&store, &args.image, &options)?;
        return print_name(args, &name);
    }
    archives::bring(&store, &args.image, args.quiet)?;
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
        if let Some((name, stack)) = &pushed.containerd {
            result["containerd"] = json!({
                "reference": name.to_string(),
                "manifest_digest": stack.manifest_digest,
                "index_digest": stack.index_digest,
            });
        }
        print_json(&result)?;
    } else {
        let name = pushed.reference.familiar();
        let digest = match &pushed.erofs {
            Some(erofs) => erofs.index_digest,
            None => pushed.manifest_digest,
        };
        print(&format!("{name} {digest}\n"))?;
        if let Some((name, stack)) = &pushed.containerd {
            print(&format!("{} {}\n", name.familiar(), stack.index_digest))?;
        }
    }
    Ok(0)
}
