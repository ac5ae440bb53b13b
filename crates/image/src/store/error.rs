//! Errors of the store.

use std::io;
use std::path::{Path, PathBuf};

use micabox_oci::Digest;

/// Most images that a message lists.
const MOST_LISTED: usize = 5;

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no directory for the store.
    #[error("cannot tell where to keep images: set MICABOX_HOME, XDG_DATA_HOME or HOME")]
    NoHome,

    /// The disk is full or a quota is exhausted.
    #[error("no space left for `{}`: free some, or see `mica store prune`", .path.display())]
    Full {
        /// The path that was being written.
        path: PathBuf,
    },

    /// An operation of the system failed.
    #[error("cannot {action} `{}`: {source}", .path.display())]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// The image is not in the store.
    #[error("no image `{name}` in the store")]
    NoImage {
        /// The requested name.
        name: String,
    },

    /// The beginning of a digest matches more than one image.
    #[error(
        "`{name}` is the beginning of more than one image's digest, of {}: give more of it",
        .images.iter().take(MOST_LISTED).map(|hex| hex.get(..12).unwrap_or(hex))
            .collect::<Vec<_>>().join(", ")
    )]
    Ambiguous {
        /// The requested name.
        name: String,
        /// The hexadecimal digits of the images' digests, sorted.
        images: Vec<String>,
    },

    /// An image's files contradict each other, or a layer is missing or was replaced.
    #[error(
        "image {image} is not usable: {problem}; pull or load it again, or see `mica store fsck`"
    )]
    Unusable {
        /// Manifest digest.
        image: Digest,
        /// The problem.
        problem: String,
    },

    /// A layer that an image needs is not in the store.
    #[error("layer {diff_id} is not in the store")]
    NoLayer {
        /// The layer.
        diff_id: Digest,
    },

    /// Only a part of a layer is here.
    #[error(
        "of layer {diff_id} only what was read of it is here: `mica pull` the image, which fetches the rest"
    )]
    Lazy {
        /// The layer.
        diff_id: Digest,
    },

    /// Two blobs have one diff ID, but contain different layers.
    #[error(
        "layer {diff_id} in the store is another one than this blob holds, and one of them is a \
         forgery: remove the images that have it, and `mica store prune` before another attempt"
    )]
    OtherLayer {
        /// The layer.
        diff_id: Digest,
    },

    /// A layer whose archive can't be rebuilt.
    #[error(
        "layer {diff_id} came as an EROFS image, not as an archive: it can be run, but neither \
         saved nor pushed. If its registry has the archives as well, `mica pull --platform {} IMAGE` \
         brings them; otherwise copy its image from where it came from",
        crate::Platform::host()
    )]
    NoArchive {
        /// The layer.
        diff_id: Digest,
    },

    /// A file of the store is damaged.
    #[error("`{}` is damaged: {problem}; see `mica store fsck`", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },

    /// A name with a digest that is another one's.
    #[error("the name `{name}` is not this image's, whose digest is {image}: leave the digest out")]
    OtherDigest {
        /// The name.
        name: String,
        /// Manifest digest of the image.
        image: Digest,
    },

    /// An invalid manifest or config.
    #[error("{what} is invalid: {problem}")]
    Invalid {
        /// The document.
        what: &'static str,
        /// The problem.
        problem: String,
    },

    /// The image's layers can't be merged.
    #[error("image {image}: its layers can't be merged: {source}")]
    Merge {
        /// Manifest digest.
        image: Digest,
        /// The reason.
        #[source]
        source: micabox_erofs::Error,
    },

    /// A sandbox uses the image.
    #[error("image {image} is in use by sandbox `{sandbox}`: remove that one first")]
    InUse {
        /// Manifest digest.
        image: Digest,
        /// The sandbox's id; that of a holder ([`HELD`](super::HELD)) if nothing else uses it.
        sandbox: String,
    },
}

/// The result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds the operation and the path to an error.
pub(crate) trait Context<T> {
    /// `action` is a verb that goes between "cannot" and the path.
    fn context(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| explain(source, action, path))
    }
}

/// Returns the store's error for one of the system's.
pub(crate) fn explain(source: io::Error, action: &'static str, path: &Path) -> Error {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full { path },
        _ => Error::Io {
            action,
            path,
            source,
        },
    }
}
