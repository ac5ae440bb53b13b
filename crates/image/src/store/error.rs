//! What can go wrong in the store, by name.

use std::io;
use std::path::{Path, PathBuf};

use micabox_oci::Digest;

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No directory to keep images in.
    #[error("cannot tell where to keep images: set MICABOX_HOME, XDG_DATA_HOME or HOME")]
    NoHome,

    /// The disk is full or a quota is used up.
    #[error("no space left for `{}`: free some, or see `mica store prune`", .path.display())]
    Full {
        /// What was being written.
        path: PathBuf,
    },

    /// The operating system said no.
    #[error("cannot {action} `{}`: {source}", .path.display())]
    Io {
        /// What was attempted, as a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },

    /// There is no such image.
    #[error("no image `{name}` in the store: `mica pull` or `mica load` it first")]
    NoImage {
        /// As it was asked for.
        name: String,
    },

    /// The beginning of a digest fits more than one image.
    #[error("`{name}` is the beginning of more than one image's digest: give more of it")]
    Ambiguous {
        /// As it was asked for.
        name: String,
    },

    /// An image's files contradict each other, or a layer is gone or was replaced.
    #[error(
        "image {image} is not usable: {problem}; pull or load it again, or see `mica store fsck`"
    )]
    Unusable {
        /// Manifest digest.
        image: Digest,
        /// What is wrong.
        problem: String,
    },

    /// A layer that an image needs is not in the store.
    #[error("layer {diff_id} is not in the store")]
    NoLayer {
        /// The layer.
        diff_id: Digest,
    },

    /// Two blobs that claim one diff ID, and hold different layers.
    #[error(
        "layer {diff_id} in the store is another one than this blob holds, and one of them is a \
         forgery: remove the images that have it, and `mica store prune` before another attempt"
    )]
    OtherLayer {
        /// The layer.
        diff_id: Digest,
    },

    /// A layer whose archive can't be made again.
    #[error(
        "layer {diff_id} came as an EROFS image, not as an archive: it can be run, but neither \
         saved nor pushed; copy its image from where it came from"
    )]
    NoArchive {
        /// The layer.
        diff_id: Digest,
    },

    /// A file of the store doesn't hold what it should.
    #[error("`{}` is damaged: {problem}; see `mica store fsck`", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },

    /// A manifest or config that no image can have.
    #[error("{what} is invalid: {problem}")]
    Invalid {
        /// Which document.
        what: &'static str,
        /// What is wrong with it.
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

    /// A sandbox runs on the image.
    #[error("image {image} is in use by sandbox `{sandbox}`: remove that one first")]
    InUse {
        /// Manifest digest.
        image: Digest,
        /// The sandbox's id.
        sandbox: String,
    },
}

/// The result of everything in the store that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Names what failed, and on what.
pub(crate) trait Context<T> {
    /// `action` is a verb that goes between "cannot" and the path.
    fn context(self, action: &'static str, path: &Path) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full {
                path: path.to_owned(),
            },
            _ => Error::Io {
                action,
                path: path.to_owned(),
                source,
            },
        })
    }
}
