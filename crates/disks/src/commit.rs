//! Commits a sandbox's changes as a new image.

use micabox_error::Error;
use micabox_image::convert::Place;
use micabox_image::store::Image;
use micabox_image::{AppendLayerError, ImageEdit, Limits, Reference, Store, append_layer};
use micabox_parsers::Notes;
use tracing::info;

use crate::upper::Unread;

/// Makes an image of a layer on top of another image's.
pub fn commit_layer(
    store: &Store,
    image: &Image,
    mut layer: Unread,
    changes: &ImageEdit,
    references: &[Reference],
    limits: &Limits,
) -> Result<(Image, Notes), Error> {
    // Reading it fails at the end if the layer is incomplete.
    let place = Place::Jail;
    let extended = append_layer(store, image, &mut layer, changes, references, limits, place);
    match extended {
        Ok(image) => {
            info!(digest = %image.manifest_digest, "made the image");
            Ok((image, layer.finish()?))
        }
        // The worker's error about the disk explains more.
        Err(error @ AppendLayerError::Read(_)) => {
            let verdict = layer.verdict();
            Err(verdict.unwrap_or_else(|| Box::new(error).into()))
        }
        Err(error) => Err(Box::new(error).into()),
    }
}
