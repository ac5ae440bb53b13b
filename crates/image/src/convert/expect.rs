//! What a layer is expected to be.

use super::error::{Error, Reason};
use super::media_type::LayerKind;
use crate::store::Checksum;
use micabox_oci::{Descriptor, Digest};
use micabox_tar::printable;

/// The expected digests of a layer.
#[derive(Debug, Clone)]
pub struct Expect {
    /// The blob as the manifest describes it. `None` without a manifest, as in old `docker save`
    /// archives: the diff ID is sufficient.
    pub blob: Option<Descriptor>,
    /// Digest of the uncompressed layer, from the image's config.
    pub diff_id: Digest,
    /// Of an EROFS image that is a device: digest of the archive that it was converted from, as its manifest says.
    pub archive: Option<Digest>,
    /// Of such an image: the checksum that it has in the store, as its manifest says; `None` if it doesn't.
    pub checksum: Option<Checksum>,
}

impl Expect {
    /// Returns the blob's digest, if it is known.
    pub(super) fn digest(&self) -> Option<Digest> {
        self.blob.as_ref().map(|blob| blob.digest)
    }

    /// Returns the blob's media type, if it is known.
    pub(super) fn media_type(&self) -> Option<&str> {
        self.blob.as_ref().map(|blob| &*blob.media_type)
    }

    /// Returns what the blob is, by its media type.
    pub(super) fn kind(&self) -> Result<LayerKind, Reason> {
        let kind = LayerKind::of(self.media_type()).map_err(|problem| Reason::MediaType {
            media_type: printable(self.media_type().unwrap_or_default().as_bytes()),
            problem,
        })?;
        Ok(match self.archive {
            Some(archive) if kind == LayerKind::Erofs => LayerKind::Device { archive },
            _ => kind,
        })
    }

    /// Returns the digest that identifies the layer in messages.
    fn layer(&self) -> Digest {
        self.digest().unwrap_or(self.diff_id)
    }

    pub(crate) fn error(&self, reason: impl Into<Reason>) -> Error {
        Error {
            layer: self.layer(),
            reason: reason.into(),
        }
    }
}
