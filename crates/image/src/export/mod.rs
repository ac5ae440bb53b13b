//! Exports images from the store: packs layers anew, and rewrites manifests accordingly.
//!
//! Unless it was told to, the store keeps no blobs, so a layer's archive is rebuilt from its image and its recipe, and
//! compressed anew. Archive and diff ID stay the same, and so do the config and the image; the
//! blob's digest changes with the compression, and with it the manifest's.

mod conversion;
mod erofs;
mod erofs_documents;
mod manifest;
mod pack;
mod remade;
mod stack;

pub use conversion::{Conversion, ConversionError, convert_image, device_id, fsmeta_id, transfers};
pub use erofs::{ErofsEntry, PackedErofs, pack_device, pack_fsmeta};
pub use erofs_documents::{ErofsDocuments, INDEX_TYPE, erofs_documents, erofs_index};
pub use manifest::MANIFEST_TYPE;
pub(crate) use manifest::fresh;
pub use manifest::{config_descriptor, rewrite};
pub use micabox_chunk::zstd_version;
pub(crate) use pack::pack;
pub use pack::{PackError, Packed, pack_layer};
pub use remade::{RemadeErofs, RemadeReader, remade_device, remade_fsmeta};
pub use stack::{PackedStack, pack_stack};

use std::fmt;
use std::str::FromStr;

/// Compression of exported layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Supported by every registry and every engine.
    #[default]
    Gzip,
    /// Smaller and faster, for engines since 2021.
    Zstd,
    /// No compression.
    None,
}

impl Compression {
    /// Returns the media type of a layer with this compression.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
            Self::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
            Self::None => "application/vnd.oci.image.layer.v1.tar",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::None => "none",
        })
    }
}

/// An unknown name of a compression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid compression `{0}`: expected gzip, zstd or none")]
pub struct UnknownCompression(String);

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Self, UnknownCompression> {
        match text {
            "gzip" => Ok(Self::Gzip),
            "zstd" => Ok(Self::Zstd),
            "none" => Ok(Self::None),
            other => Err(UnknownCompression(other.to_owned())),
        }
    }
}
