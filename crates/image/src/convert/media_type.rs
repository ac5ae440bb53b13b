//! Kinds of layers, by the media type in the manifest.

use micabox_oci::Digest;
use serde::{Deserialize, Serialize};

/// Kinds of layers that we can convert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LayerKind {
    /// A tar archive.
    Archive,
    /// An EROFS image, of any tool's.
    Erofs,
    /// An EROFS image of our own, whose bytes are published as they are: merged metadata points into them.
    Device {
        /// Digest of the archive that it was converted from, which names in it are made of.
        archive: Digest,
    },
}

/// Media types of tar archives, without the suffix for the compression.
const ARCHIVES: [&str; 4] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
];

/// containerd's media type for EROFS images, and the draft EROFS image specification's.
const EROFS: [&str; 2] = ["application/vnd.erofs.layer.v1", "application/vnd.erofs"];

impl LayerKind {
    /// Returns the archive that a device was converted from, elsewhere.
    pub(crate) fn archive(self) -> Option<Digest> {
        match self {
            Self::Device { archive } => Some(archive),
            Self::Archive | Self::Erofs => None,
        }
    }

    /// Returns the kind of a layer. Without a media type, as in archives of `docker save`, the
    /// layer is an archive.
    ///
    /// The compression in the media type isn't used: like Docker and containerd we detect it from
    /// the blob's first bytes, since layers with a wrong type exist.
    ///
    /// # Errors
    ///
    /// Why a layer of this type can't be read.
    pub(crate) fn of(media_type: Option<&str>) -> Result<Self, &'static str> {
        let Some(full) = media_type else {
            return Ok(Self::Archive);
        };
        // Parameters may follow a semicolon.
        let plain = full.split(';').next().unwrap_or_default().trim();
        let is = |base: &&str| {
            matches!(
                plain.strip_prefix(base),
                Some("" | "+gzip" | "+zstd" | ".gzip" | ".zstd")
            )
        };
        if ARCHIVES.iter().any(is) {
            Ok(Self::Archive)
        } else if EROFS.iter().any(is) {
            Ok(Self::Erofs)
        } else if plain.contains("+encrypted") {
            Err("encrypted layers can't be read without their key")
        } else {
            Err("this is not a layer of an image that can be run")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_of_archives_and_of_filesystems_are_known() {
        let kind = |media_type| LayerKind::of(Some(media_type)).ok();
        for archive in [
            "application/vnd.oci.image.layer.v1.tar",
            "application/vnd.oci.image.layer.v1.tar+gzip",
            "application/vnd.oci.image.layer.v1.tar+zstd",
            "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
            "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip; charset=binary",
        ] {
            assert_eq!(kind(archive), Some(LayerKind::Archive), "{archive}");
        }
        for erofs in [
            "application/vnd.erofs.layer.v1",
            "application/vnd.erofs.layer.v1+zstd",
            "application/vnd.erofs",
            "application/vnd.erofs+zstd",
        ] {
            assert_eq!(kind(erofs), Some(LayerKind::Erofs), "{erofs}");
        }
        for other in [
            "application/vnd.oci.image.layer.v1.tar+gzip+encrypted",
            "application/vnd.oci.image.layer.v1.tarball",
            "application/vnd.oci.image.config.v1+json",
            "application/vnd.erofs.chunk-index.v1",
            "",
        ] {
            assert_eq!(kind(other), None, "{other}");
        }
    }
}
