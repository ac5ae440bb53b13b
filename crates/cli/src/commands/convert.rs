//! `mica convert`

use std::sync::Arc;

use micabox_image::export::{Conversion, convert_image};
use micabox_image::progress::Silent;
use micabox_image::{Digest, Platform, Progress, Reference, Store};
use micabox_transfer::{PullOptions, VerifyError, verify_conversion_blocking};
use serde_json::json;

use crate::commands::push;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{Table, print, print_json, size};
use micabox_program::{bars, settings};

/// Convert an image to EROFS images for registries
///
/// Each layer becomes an EROFS image, and their merged metadata one more (EROFS image specification):
/// compressed in chunks that can be read one by one, with dm-verity trees. The same image always
/// becomes the same bits.
///
/// With TARGET, both forms are pushed there, under one tag, and the index's digest is printed: what
/// `mica push --erofs` does. Without it, this prints what the image becomes, and the digest of the
/// manifest. With --verify it checks what a registry has: the archives are pulled, into the store, and
/// converted, and have to become what is published beside them. Layers that the store has are those that
/// it has converted, if they have their checksums. Of what another version of zstd has compressed, the
/// contents are compared, and not their compression. The exit code is 1 if they differ, or if that can't
/// be told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Check the registry's EROFS images against its archives
    #[arg(long, conflicts_with = "target")]
    verify: bool,

    /// Platform of the image that is checked [default: this machine's]
    #[arg(long, value_name = "OS/ARCH", requires = "verify")]
    platform: Option<Platform>,

    /// With TARGET: another tag of its repository for containerd 2.4 (`mica push --containerd`)
    #[arg(long, value_name = "TAG", requires = "target")]
    containerd: Option<String>,

    /// Say nothing meanwhile
    #[arg(short, long)]
    quiet: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// The image: a name or a digest in the store; with --verify a name in a registry
    #[arg(value_name = "IMAGE")]
    image: String,

    /// The destination: NAME or NAME:TAG
    #[arg(value_name = "TARGET")]
    target: Option<Reference>,
}

/// Converts an image, or checks one.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    if args.verify {
        return verify(args, &store);
    }
    if let Some(target) = &args.target {
        let containerd = args.containerd.as_deref();
        return push::both_forms(&args.image, target, containerd, args.quiet, args.json);
    }
    let image = store.image(&args.image)?;
    let conversion = {
        let progress = progress(args, bars::watch_converting);
        convert_image(&store, &image, &*progress).map_err(|error| Failure::of(&error))?
    };
    let manifest = Digest::of(&conversion.documents.manifest);
    if args.json {
        print_json(&json!({
            "manifest_digest": image.manifest_digest,
            "erofs_manifest_digest": manifest,
            "images": conversion.images.iter().map(|image| json!({
                "digest": image.blob.digest,
                "size": image.blob.size,
                "uncompressed_digest": image.uncompressed,
                "uncompressed_size": image.uncompressed_size,
            })).collect::<Vec<_>>(),
        }))?;
    } else {
        print(&table(&conversion))?;
        print(&format!("{manifest}\n"))?;
    }
    Ok(0)
}

fn verify(args: &Args, store: &Store) -> Outcome {
    let reference: Reference = args.image.parse().map_err(|error| Failure::of(&error))?;
    let mut options = PullOptions::new(settings::settings()?);
    options.platform.clone_from(&args.platform);
    let verified = {
        let progress = progress(args, bars::watch);
        verify_conversion_blocking(store, &reference, &options, progress).map_err(failure)?
    };
    if args.json {
        print_json(&json!({
            "reference": reference.to_string(),
            "manifest_digest": verified.manifest,
            "erofs_manifest_digest": verified.erofs_manifest,
            "layers": verified.layers,
            "other_zstd": verified.other_zstd,
        }))?;
    } else {
        let (converted, archives) = (verified.erofs_manifest, verified.manifest);
        print(&match verified.other_zstd {
            None => format!("{converted} is the conversion of {archives}\n"),
            Some(zstd) => format!(
                "{converted} has the contents of the conversion of {archives}; zstd {zstd} has compressed them, whose \
                 chunks and their index were not compared\n"
            ),
        })?;
    }
    Ok(0)
}

fn progress(args: &Args, shown: fn(&str) -> Arc<dyn Progress>) -> Arc<dyn Progress> {
    if args.quiet {
        Arc::new(Silent)
    } else {
        shown(&args.image)
    }
}

/// Adds what there is to do.
pub fn failure(error: VerifyError) -> Failure {
    match error {
        VerifyError::Pull(error) => error.into(),
        error @ VerifyError::NoForm { .. } => Failure::of(&error)
            .hint("`mica push --erofs` and `mica convert IMAGE TARGET` publish both forms"),
        error => Failure::of(&error),
    }
}

/// Lists the images, the merged metadata last.
fn table(conversion: &Conversion) -> String {
    let mut table = Table::new(&["IMAGE", ">SIZE", ">COMPRESSED", "DIGEST"]);
    let last = conversion.images.len();
    for (number, image) in (1..).zip(&conversion.images) {
        let name = if number == last {
            "metadata".to_owned()
        } else {
            format!("layer {number}")
        };
        table.row([
            name,
            size(image.uncompressed_size),
            size(image.blob.size),
            image.blob.digest.to_string(),
        ]);
    }
    table.render()
}
