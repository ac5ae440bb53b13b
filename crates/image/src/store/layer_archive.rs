//! Rebuilds the archive that a layer was made from.

use std::fs::File;
use std::io::{self, BufReader, Read};

use super::LayerImage;
use super::Store;
use super::error::{Error, Result};
use super::layers::Layer;
use crate::recipe::Recipe;
use micabox_oci::{Digest, Hasher};

/// The uncompressed archive of a layer, to be read once. Reads of a few hundred kilobytes are the
/// fastest.
///
/// Its digest is checked while it is read: a wrong one is an error at the end, which contains an
/// [`Error`]. Results of reading must not be used before that. After [`Self::skip`] nothing is checked.
pub struct LayerArchive {
    recipe: Recipe<BufReader<File>, LayerImage>,
    layer: Layer,
    /// To find the recipe's path for errors.
    store: Store,
    hasher: Option<Hasher>,
}

impl Store {
    /// Opens a layer's archive.
    ///
    /// # Errors
    ///
    /// [`Error::NoArchive`] if the layer wasn't made from one, [`Error::Damaged`] if its recipe is
    /// missing or invalid, [`Error::Io`] if a file can't be opened.
    pub fn archive(&self, layer: &Layer) -> Result<LayerArchive> {
        let diff_id = layer.diff_id;
        if layer.record.recipe.is_none() {
            return Err(Error::NoArchive { diff_id });
        }
        let path = self.layout.recipe(&diff_id);
        let damaged = |error: io::Error| Error::Damaged {
            path: path.clone(),
            problem: error.to_string(),
        };
        let file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => damaged(error),
            _ => Error::Io {
                action: "open",
                path: path.clone(),
                source: error,
            },
        })?;
        let image = self.open_layer(layer)?;
        let size = layer.record.uncompressed_size;
        Ok(LayerArchive {
            recipe: Recipe::open(BufReader::new(file), image, size).map_err(damaged)?,
            layer: layer.clone(),
            store: self.clone(),
            hasher: Some(Hasher::new()),
        })
    }
}

impl LayerArchive {
    /// Returns the length of the archive in bytes.
    pub fn size(&self) -> u64 {
        self.layer.record.uncompressed_size
    }

    /// Returns the digest of the archive, which is checked once all bytes are read.
    pub fn diff_id(&self) -> &Digest {
        &self.layer.diff_id
    }

    /// Passes over so many bytes, faster than reading them. The digest is not checked then.
    ///
    /// # Errors
    ///
    /// An error that contains an [`Error`]: the archive has fewer bytes, or its recipe is damaged.
    pub fn skip(&mut self, count: u64) -> io::Result<()> {
        if count > 0 {
            self.hasher = None;
        }
        self.recipe
            .skip(count)
            .map_err(|error| self.damaged(error.to_string()))
    }

    /// Extracts the store's error from an error of a read.
    pub(crate) fn explain(&self, error: io::Error) -> Error {
        error
            .downcast::<Error>()
            .unwrap_or_else(|source| Error::Io {
                action: "read",
                path: self.layer.path.clone(),
                source,
            })
    }

    fn damaged(&self, problem: String) -> io::Error {
        let path = self.store.layout.recipe(&self.layer.diff_id);
        io::Error::new(io::ErrorKind::InvalidData, Error::Damaged { path, problem })
    }
}

impl Read for LayerArchive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match self.recipe.read(buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            // Of the disk, and no damage.
            Err(error) if error.raw_os_error().is_some() => return Err(error),
            Err(error) => return Err(self.damaged(error.to_string())),
        };
        match (&mut self.hasher, count) {
            (Some(hasher), 1..) => hasher.update(&buffer[..count]),
            (hasher, 0) if !buffer.is_empty() => {
                if let Some(actual) = hasher.take().map(Hasher::finish)
                    && actual != self.layer.diff_id
                {
                    return Err(self.damaged(format!(
                        "with the layer's image it makes an archive of the digest {actual}"
                    )));
                }
            }
            _ => {}
        }
        Ok(count)
    }
}

impl std::fmt::Debug for LayerArchive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LayerArchive")
            .field(&self.layer.diff_id)
            .finish()
    }
}
