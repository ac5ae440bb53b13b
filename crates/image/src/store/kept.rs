//! Blobs that are kept as they came: layers as they were compressed, and the indexes that led to images. So an image can
//! be passed on under its registry's digests.
//!
//! A blob is a file under its digest, which was checked before it got this name. It is of use as long as an image's
//! manifest, or a name, has its digest; others are removed by prune.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use super::Store;
use super::durable;
use super::error::{Context, Error, Result};
use super::layers::Layer;
use super::scratch::Scratch;
use crate::manifest::{Document, Manifest, digest_of};
use micabox_oci::{Digest, Hasher, MAX_DOCUMENT};

/// A blob as it came, to be read once.
///
/// Its digest is checked while it is read: a wrong one is an error at the end, which contains an [`Error`]. After
/// [`Self::skip`] nothing is checked.
pub struct KeptBlob {
    file: File,
    path: PathBuf,
    digest: Digest,
    /// Length in bytes.
    size: u64,
    /// Where the next byte is.
    at: u64,
    hasher: Option<Hasher>,
}

impl Store {
    /// Opens a blob that was kept; `None` if there is none of this digest.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn kept_blob(&self, digest: &Digest) -> Result<Option<KeptBlob>> {
        let path = self.layout.kept_blob(digest);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.context("open", &path)?,
        };
        let size = file.metadata().context("look at", &path)?.len();
        Ok(Some(KeptBlob {
            file,
            path,
            digest: *digest,
            size,
            at: 0,
            hasher: Some(Hasher::new()),
        }))
    }

    /// Returns whether a blob of this length in bytes can be passed on: it is kept, or it is a layer's archive, which the
    /// store rebuilds. Its digest is checked when it is read.
    #[must_use]
    pub fn has_blob(&self, digest: &Digest, size: u64) -> bool {
        let is_kept = || {
            let kept = std::fs::metadata(self.layout.kept_blob(digest));
            kept.is_ok_and(|kept| kept.len() == size)
        };
        let is_rebuilt =
            |layer: Layer| layer.record.recipe.is_some() && layer.record.uncompressed_size == size;
        is_kept() || self.layer(digest).ok().flatten().is_some_and(is_rebuilt)
    }

    /// Returns whether all blobs that a manifest names beside its config can be passed on.
    #[must_use]
    pub fn has_blobs_of(&self, manifest: &Manifest) -> bool {
        manifest.layers.iter().all(|entry| {
            let digest = digest_of(entry, "manifest", "layer");
            matches!((digest, entry.size), (Ok(digest), Some(size)) if self.has_blob(&digest, size))
        })
    }

    /// Keeps an index. The caller must hold [`Store::shared`] until a name has it ([`Origin`](super::Origin)).
    ///
    /// # Errors
    ///
    /// Errors of the disk.
    pub fn keep_index(&self, bytes: &[u8]) -> Result<()> {
        let digest = Digest::of(bytes);
        if matches!(self.kept_index(&digest), Ok(Some(_))) {
            return Ok(());
        }
        let scratch = Scratch::new(&self.layout.tmp())?;
        durable::write(&scratch, "index", bytes)?;
        durable::publish(&scratch.path("index"), &self.layout.kept_blob(&digest))
    }

    /// Returns the index of this digest, if it was kept.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`], and errors of the disk.
    pub fn kept_index(&self, digest: &Digest) -> Result<Option<Vec<u8>>> {
        let Some(mut blob) = self.kept_blob(digest)?.filter(|b| b.size <= MAX_DOCUMENT) else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let read = blob.read_to_end(&mut bytes);
        read.map_err(|error| blob.explain(error))?;
        // A layer may be as small.
        let is_index = matches!(Document::parse(&bytes, None), Ok(Document::Index(_)));
        Ok(is_index.then_some(bytes))
    }
}

impl KeptBlob {
    /// Returns its length in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns its digest, which is checked once all bytes are read.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Passes over so many bytes. The digest is not checked then.
    pub fn skip(&mut self, count: u64) {
        if count > 0 {
            self.hasher = None;
        }
        self.at = self.at.saturating_add(count);
    }

    /// Reads all of it and checks its digest. Returns the file, to be read from its begin.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`], and errors of the disk.
    pub fn check(mut self) -> Result<File> {
        match io::copy(&mut self, &mut io::sink()) {
            Ok(_) => Ok(self.file),
            Err(error) => Err(self.explain(error)),
        }
    }

    /// Removes the blob, which was found damaged: the next pull that keeps blobs brings it again.
    ///
    /// # Errors
    ///
    /// Errors of the disk.
    pub fn remove(&self) -> Result<()> {
        let is_ours = || -> io::Result<bool> {
            let (ours, there) = (self.file.metadata()?, std::fs::metadata(&self.path)?);
            Ok((ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        };
        match is_ours() {
            Ok(true) => durable::remove_file(&self.path),
            // Another one has taken its place, or none.
            _ => Ok(()),
        }
    }

    /// Extracts the store's error from an error of a read.
    pub(super) fn explain(&self, error: io::Error) -> Error {
        error
            .downcast::<Error>()
            .unwrap_or_else(|source| Error::Io {
                action: "read",
                path: self.path.clone(),
                source,
            })
    }
}

impl std::fmt::Debug for KeptBlob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("KeptBlob").field(&self.digest).finish()
    }
}

impl Read for KeptBlob {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        match &mut self.hasher {
            Some(hasher) if count > 0 => hasher.update(&buffer[..count]),
            hasher if count == 0 && !buffer.is_empty() => {
                if let Some(actual) = hasher.take().map(Hasher::finish)
                    && actual != self.digest
                {
                    let damaged = Error::Damaged {
                        path: self.path.clone(),
                        problem: format!("its digest is {actual}"),
                    };
                    return Err(io::Error::new(io::ErrorKind::InvalidData, damaged));
                }
            }
            _ => {}
        }
        Ok(count)
    }
}
