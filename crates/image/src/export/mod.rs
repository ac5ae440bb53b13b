//! Images on their way out of the store: layers packed anew, and manifests that say so.
//!
//! The store keeps no blobs, so a layer's archive is made again from its image and its
//! recipe, and compressed anew. Archive and diff ID stay the same, and so do the config and
//! what an image is; the blob's digest changes with the compression, and with it the
//! manifest's.

mod manifest;
mod pack;

pub(crate) use manifest::{MANIFEST_TYPE, fresh};
pub use manifest::{config_descriptor, rewrite};
pub(crate) use pack::pack;
pub use pack::{PackError, Packed, pack_layer};

use std::fmt;
use std::str::FromStr;

/// How layers are compressed on their way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// What every registry and every engine takes.
    #[default]
    Gzip,
    /// Smaller and faster, for engines younger than 2021.
    Zstd,
    /// Not at all.
    None,
}

impl Compression {
    /// The media type of a layer that is compressed like this.
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

/// A word that names no compression.
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
