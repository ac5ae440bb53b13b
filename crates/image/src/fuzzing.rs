//! Entry points for `fuzz/` to parsers of foreign bytes that programs don't call directly.

use std::io::{self, Read};

use crate::Platform;
pub use crate::convert::fuzzing::{archive, device, erofs, inflate};
use crate::manifest::{self, Document, ManifestError, Search};
use crate::recipe::Recipe;
use crate::{Digest, Limits};

/// A layer, from a manifest and its config.
#[derive(Debug)]
pub struct Layer {
    /// Digest of the blob, and its size in bytes.
    pub blob: (Digest, u64),
    /// Digest of the uncompressed archive.
    pub diff_id: Digest,
    /// Other addresses of the blob.
    pub urls: Vec<String>,
}

/// Looks for an image as a pull does: `document` returns a registry's response and its type, one
/// request after the other.
///
/// # Errors
/// A pull's error.
pub fn find(
    mut document: impl FnMut() -> (Vec<u8>, Option<String>),
    limits: &Limits,
) -> Result<Vec<Layer>, String> {
    let text = |error: ManifestError| error.to_string();
    let mut search = Search::new(Platform::host());
    loop {
        let (bytes, media_type) = document();
        match image(
            &bytes,
            media_type.as_deref(),
            &mut search,
            &mut document,
            limits,
        ) {
            Ok(Some(layers)) => return Ok(layers),
            Ok(None) => {}
            Err(error) => search.pass_over(error),
        }
        let next = search.next_document().map_err(text)?;
        manifest::digest_of(&next, "index", "manifest").map_err(text)?;
    }
}

fn image(
    bytes: &[u8],
    media_type: Option<&str>,
    search: &mut Search,
    document: &mut impl FnMut() -> (Vec<u8>, Option<String>),
    limits: &Limits,
) -> Result<Option<Vec<Layer>>, ManifestError> {
    let image = match Document::parse(bytes, media_type)? {
        Document::Index(index) => return search.index(&index).map(|()| None),
        Document::Manifest(image) => image,
    };
    manifest::digest_of(manifest::config_of(&image)?, "manifest", "config")?;
    let config = manifest::parse_config(&document().0)?;
    if !search.image(&config) {
        return Ok(None);
    }
    let layers = manifest::layers_of(&image, &config, limits)?;
    let layer = |layer: manifest::LayerSource| Layer {
        blob: (layer.blob.digest, layer.blob.size),
        diff_id: layer.diff_id,
        urls: layer.urls,
    };
    Ok(Some(layers.into_iter().map(layer).collect()))
}

/// Rebuilds the archive of `size` bytes from a recipe and an image, from this byte on.
///
/// # Errors
/// The reader's error.
pub fn rebuild_from<'a>(
    recipe: &'a [u8],
    image: &'a [u8],
    size: u64,
    start: u64,
) -> io::Result<impl Read + 'a> {
    let mut recipe = Recipe::open(recipe, image, size)?;
    recipe.skip(start)?;
    Ok(recipe)
}

/// Rebuilds the archive of `size` bytes from a recipe and an image.
///
/// # Errors
/// The reader's error.
pub fn rebuild<'a>(recipe: &'a [u8], image: &'a [u8], size: u64) -> io::Result<impl Read + 'a> {
    Recipe::open(recipe, image, size)
}
