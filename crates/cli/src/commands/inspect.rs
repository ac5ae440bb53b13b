//! `mica inspect`

use micabox_image::store::{self, Image};
use micabox_image::{Digest, Store};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::print_json;
use crate::{Outcome, settings};

/// Show everything about images or sandboxes, as JSON
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Accepted like elsewhere; the output is always JSON
    #[arg(long)]
    json: bool,

    /// Names, digests or IDs; a sandbox takes precedence over an image
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Shows images and sandboxes.
pub fn execute(args: &Args) -> Outcome {
    let store = settings::store()?;
    let sandboxes = settings::sandboxes(&store)?;
    let mut all = Vec::new();
    for name in &args.names {
        let sandbox = match sandboxes.get(name) {
            Ok(sandbox) => Some(sandbox),
            Err(micabox::Error::NoSuchSandbox(_)) => None,
            Err(error) => return Err(error.into()),
        };
        all.push(match sandbox {
            Some(sandbox) => json!({"sandbox": sandbox.record()}),
            None => image(&store, name)?,
        });
    }
    print_json(&all)?;
    Ok(0)
}

fn image(store: &Store, name: &str) -> Result<Value, Failure> {
    let image = store.image(name).map_err(|error| match error {
        store::Error::NoImage { .. } => {
            Failure::new(format!("no sandbox and no image is called {name}"))
                .hint("`mica images` and `mica ps -a` list them")
        }
        error => error.into(),
    })?;
    let document = |bytes: Vec<u8>| {
        serde_json::from_slice::<Value>(&bytes)
            .map_err(|error| Failure::of(&error).context("reading the image's documents"))
    };
    let references: Vec<_> = names(store, &image.manifest_digest)?;
    Ok(json!({"image": {
        "references": references,
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
        "layers": layers(&image),
    }}))
}

fn names(store: &Store, digest: &Digest) -> Result<Vec<String>, Failure> {
    let images = store.images()?;
    let image = images.iter().find(|image| image.manifest_digest == *digest);
    let names = image.map(|image| image.references.iter().map(ToString::to_string).collect());
    Ok(names.unwrap_or_default())
}

fn layers(image: &Image) -> Vec<Value> {
    let layers = image.layers.iter().map(|layer| {
        json!({
            "diff_id": layer.diff_id,
            "path": layer.path,
            "blocks": layer.blocks,
            "record": layer.record,
        })
    });
    layers.collect()
}
