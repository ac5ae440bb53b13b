//! Why a manifest, an index or a config can't be used.

use crate::Platform;
use crate::{Digest, printable};

/// Most platforms that an error lists.
const MAX_LISTED: usize = 20;

/// Why a manifest or an image configuration can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// Not JSON, or JSON of another structure.
    #[error("the {document} is malformed: {message}")]
    Malformed {
        /// Manifest, index or config.
        document: &'static str,
        /// The position and the problem.
        message: String,
    },
    /// Docker's first manifest format.
    #[error(
        "it is a Docker schema 1 manifest, a format that can't be verified and was given up: \
         push the image again with a current tool"
    )]
    Schema1,
    /// An image manifest and an index at once, which different tools would read differently.
    #[error("the document claims to be both an image and an index of images")]
    Ambiguous,
    /// Neither an image nor an index.
    #[error("media type `{0}` is neither an image nor an index of images")]
    UnknownType(String),
    /// Another artifact that registries hold: a chart, a signature, a module.
    #[error("it is not a container image but an artifact of type `{0}`")]
    Artifact(String),
    /// An image, where a snapshot was asked for.
    #[error("it is no snapshot")]
    NoSnapshot,
    /// The index has no image for this platform.
    #[error(
        "there is no image for {wanted}, only for {}; choose with --platform",
        list(offered)
    )]
    NoPlatform {
        /// The requested platform.
        wanted: Box<Platform>,
        /// The available platforms.
        offered: Vec<Platform>,
    },
    /// An index without images.
    #[error("the index names no image")]
    NoImage,
    /// Too many indexes within indexes, or too many documents.
    #[error("its indexes are nested too deeply or name too many documents")]
    TooDeep,
    /// A digest that can't be verified.
    #[error("the {document} names a {of} by a bad digest: {source}")]
    Digest {
        /// Manifest or config.
        document: &'static str,
        /// The document that the digest is of.
        of: &'static str,
        /// What is wrong with it.
        source: micabox_oci::ParseError,
    },
    /// The manifest and its config have different numbers of layers.
    #[error("the manifest has {layers} layers, its config {diff_ids}")]
    LayerCount {
        /// Layers in the manifest.
        layers: usize,
        /// Layers in the config.
        diff_ids: usize,
    },
    /// A compressed layer whose uncompressed digest is nowhere.
    #[error(
        "neither the config nor the annotation org.erofs.uncompressed-digest has the diff ID of \
         layer {blob}"
    )]
    NoDiffId {
        /// The blob.
        blob: Digest,
    },
    /// A layer whose files are not simply the next ones of the root.
    #[error("layer {blob} has {role}, which is not supported")]
    Role {
        /// The blob.
        blob: Digest,
        /// The role, as its annotation has it.
        role: String,
    },
    /// An EROFS image that has files of another one, or of which another one has files.
    #[error(
        "layer {blob} has the role `{role}` (org.erofs.role), which is taken only in images that mica has converted: \
         make its filesystem of images that need no others, or pull its archives if there are any"
    )]
    ErofsRole {
        /// The blob.
        blob: Digest,
        /// The role.
        role: String,
    },
    /// A layer with the media type of something else, as signatures have.
    #[error("layer {blob}: media type `{media_type}`: {problem}")]
    LayerType {
        /// The blob.
        blob: Digest,
        /// Its type.
        media_type: String,
        /// Why it is refused.
        problem: &'static str,
    },
    /// An image that can't be written to a manifest again.
    #[error(
        "it has layers that are not kept here (chunk indexes), so its manifest can't be made again"
    )]
    LeftOut,
    /// The image was converted to EROFS images by another version.
    #[error(
        "its layers are EROFS images of format {format}, and this version of mica has format {}: pull its archives",
        crate::identity::FORMAT
    )]
    Format {
        /// What its manifest says.
        format: String,
    },
    /// Two layers are said to be made of one archive.
    #[error(
        "two of its layers are different EROFS images, both said to be converted from the archive {archive}"
    )]
    Archive {
        /// The archive's digest.
        archive: Digest,
    },
    /// The image came as EROFS images, and something was to be made of its archives.
    #[error(
        "its layers came as EROFS images, and their archives are not here: if its registry has them, \
         `mica pull --platform {} IMAGE` brings them",
        Platform::host()
    )]
    NoArchives,
    /// Archives of an image that came as EROFS images were to be fetched, and there are none.
    #[error(
        "it came as EROFS images, and its registry has no archives beside them under this name: it can be run, but \
         neither saved nor pushed"
    )]
    NotBeside,
    /// A layer whose blob alone exceeds the limit.
    #[error("layer {blob} is {size} bytes: more than limits.layer-size = {limit} allows")]
    LayerSize {
        /// The blob.
        blob: Digest,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
}

fn list(platforms: &[Platform]) -> String {
    let mut names: Vec<String> = platforms
        .iter()
        .take(MAX_LISTED)
        .map(|platform| printable(&platform.to_string()))
        .collect();
    if platforms.len() > MAX_LISTED {
        names.push("others".to_owned());
    }
    names.join(", ")
}
