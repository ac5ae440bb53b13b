//! Doors for `fuzz/` to parsers of foreign bytes that no program has a reason to call.

use std::io::{self, Read};

pub use crate::convert::fuzzing::{archive, erofs, inflate};
use crate::manifest::{self, Document, Search};
use crate::platform::Platform;
use crate::recipe::Recipe;
use crate::{Digest, Limits};

/// A layer as a manifest and its config have it.
#[derive(Debug)]
pub struct Layer {
    /// Digest of the blob, and its size in bytes.
    pub blob: (Digest, u64),
    /// Digest of the archive.
    pub diff_id: Digest,
    /// Where else the blob is said to be.
    pub urls: Vec<String>,
}

/// Looks for an image as a pull does: `document` gives what a registry answers to one request
/// after the other, with its type.
///
/// # Errors
/// What a pull would say.
pub fn find(
    mut document: impl FnMut() -> (Vec<u8>, Option<String>),
    limits: &Limits,
) -> Result<Vec<Layer>, String> {
    let text = |error: manifest::ManifestError| error.to_string();
    let mut search = Search::new(Platform::host());
    loop {
        let (bytes, media_type) = document();
        match Document::parse(&bytes, media_type.as_deref()).map_err(text)? {
            Document::Index(index) => search.index(&index).map_err(text)?,
            Document::Manifest(image) => {
                let config = manifest::config_of(&image).map_err(text)?;
                manifest::digest_of(config, "manifest", "config").map_err(text)?;
                let config = manifest::parse_config(&document().0).map_err(text)?;
                if search.image(&config) {
                    let layers = manifest::layers_of(&image, &config, limits).map_err(text)?;
                    let layers = layers.into_iter().map(|layer| Layer {
                        blob: (layer.blob.digest, layer.blob.size),
                        diff_id: layer.diff_id,
                        urls: layer.urls,
                    });
                    return Ok(layers.collect());
                }
            }
        }
        let next = search.next_document().map_err(text)?;
        manifest::digest_of(&next, "index", "manifest").map_err(text)?;
    }
}

/// The archive of `size` bytes that a recipe makes of an image.
///
/// # Errors
/// What reading it would say.
pub fn rebuild<'a>(recipe: &'a [u8], image: &'a [u8], size: u64) -> io::Result<impl Read + 'a> {
    Recipe::open(recipe, image, size)
}
