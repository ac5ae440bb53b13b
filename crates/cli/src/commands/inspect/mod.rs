//! `mica inspect`

mod docker;

use micabox::{ErrorKind, SandboxRef, Sandboxes, Snapshot};
use micabox_image::store::{self, Image};
use micabox_image::{Digest, Store};
use serde_json::{Value, json};

use super::snapshot;
use crate::document::Document;
use micabox_program::failure::{Failure, Outcome, print_all};
use micabox_program::output::{print_json, write_stdout};
use micabox_program::settings;

/// Show everything about images, sandboxes or snapshots, as JSON
///
/// With --type or --format the documents are Docker's, for scripts and tools that read those.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Accepted like elsewhere; the output is always JSON
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// What the names are of
    #[arg(long = "type", value_name = "TYPE")]
    of: Option<Type>,

    /// Print what a template says, for each name [{{.State.Status}}, {{json .Config}}]
    #[arg(short, long, value_name = "FORMAT")]
    format: Option<String>,

    /// Accepted as with Docker: a sandbox's size is not among its fields
    #[arg(short, long, hide = true)]
    size: bool,

    /// Names, digests or IDs; a sandbox takes precedence over an image, and an image over a snapshot
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// What can be inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Type {
    Image,
    #[value(alias = "sandbox")]
    Container,
}

/// Shows images and sandboxes.
pub fn execute(args: &Args) -> Outcome {
    let format = Document::wanted(args.format.as_deref())?;
    let is_dockers = format.is_some() || args.of.is_some();
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let (mut all, mut failures) = (Vec::new(), Vec::new());
    for name in &args.names {
        match args.find(&store, &sandboxes, name) {
            Ok(Found::Sandbox(sandbox)) if is_dockers => {
                all.push(docker::sandbox(sandbox.record()));
            }
            Ok(Found::Sandbox(sandbox)) => all.push(json!({"sandbox": sandbox.record()})),
            Ok(Found::Image(image)) if is_dockers => {
                let config = document(store.config(&image.manifest_digest)?)?;
                let names = names(&store, &image.manifest_digest)?;
                all.push(docker::image(&image, &names, &config));
            }
            Ok(Found::Image(found)) => all.push(image(&store, &found)?),
            Ok(Found::Snapshot(found)) => all.push(json!({"snapshot": snapshot::in_json(&found)})),
            // As with Docker, others are shown all the same.
            Err(failure) if is_dockers => failures.push(failure),
            Err(failure) => return Err(failure),
        }
    }
    match format {
        Some(format) => {
            for document in &all {
                write_stdout(format.render_strictly(document)?.as_bytes())?;
            }
        }
        None => print_json(&all)?,
    }
    print_all(&failures);
    Ok(u8::from(!failures.is_empty()))
}

/// What has a name.
enum Found {
    Sandbox(Box<SandboxRef>),
    Image(Box<Image>),
    Snapshot(Box<Snapshot>),
}

impl Args {
    fn find(&self, store: &Store, sandboxes: &Sandboxes, name: &str) -> Result<Found, Failure> {
        if self.of != Some(Type::Image) {
            match sandboxes.get(name) {
                Ok(sandbox) => return Ok(Found::Sandbox(Box::new(sandbox))),
                Err(micabox::Error::NoSuchSandbox(_)) if self.of.is_none() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let missing = match store.image(name) {
            Ok(image) => return Ok(Found::Image(Box::new(image))),
            Err(error @ store::Error::NoImage { .. }) => error,
            Err(error) => return Err(error.into()),
        };
        if self.of.is_some() {
            return Err(missing.into());
        }
        // Docker's documents have none.
        if self.format.is_none()
            && let Ok(snapshot) = sandboxes.snapshot(name)
        {
            return Ok(Found::Snapshot(Box::new(snapshot)));
        }
        Err(Failure::of_kind(
            ErrorKind::NotFound,
            format!("no sandbox, image or snapshot is called {name}"),
        )
        .hint("`mica images`, `mica ps -a` and `mica snapshot ls` list them"))
    }
}

fn document(bytes: Vec<u8>) -> Result<Value, Failure> {
    micabox_image::json::from_slice(&bytes)
        .map_err(|error| Failure::of(&error).context("reading the image's documents"))
}

fn image(store: &Store, image: &Image) -> Result<Value, Failure> {
    let references = names(store, &image.manifest_digest)?;
    let signers = signers(store, &references)?;
    Ok(json!({"image": {
        "references": references,
        "signers": signers,
        "manifest_digest": image.manifest_digest,
        "config_digest": image.config_digest,
        "manifest": document(store.manifest(&image.manifest_digest)?)?,
        "config": document(store.config(&image.manifest_digest)?)?,
        "fsmeta": {"path": image.fsmeta, "blocks": image.fsmeta_blocks},
        "fixup": image.fixup.as_ref().map(|fixup| json!({
            "path": fixup.path, "blocks": fixup.blocks,
        })),
        "disk": image.vmdk,
        "trimmed": store.views(&image.manifest_digest)?,
        "layers": layers(image),
    }}))
}

fn names(store: &Store, digest: &Digest) -> Result<Vec<String>, Failure> {
    let images = store.images()?;
    let image = images.iter().find(|image| image.manifest_digest == *digest);
    let names = image.map(|image| image.references.iter().map(ToString::to_string).collect());
    Ok(names.unwrap_or_default())
}

/// Returns the signers of an image by its names, without names that have none.
fn signers(store: &Store, names: &[String]) -> Result<Value, Failure> {
    let mut all = serde_json::Map::new();
    for name in names {
        let Ok(reference) = name.parse() else {
            continue;
        };
        let signers = store.signers(&reference)?;
        if !signers.is_empty() {
            all.insert(name.clone(), signers.into());
        }
    }
    Ok(all.into())
}

fn layers(image: &Image) -> Vec<Value> {
    let layers = image.layers.iter().map(|layer| {
        json!({
            "diff_id": layer.diff_id,
            "path": layer.path,
            "packed": !layer.path.exists(),
            "blocks": layer.blocks,
            "record": layer.record,
        })
    });
    layers.collect()
}
