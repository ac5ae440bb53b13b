//! Errors of a layer's import.

use std::io;

use super::decompress::ForeignCompression;
use crate::limits::Limit;
use crate::store::{self, Checksum};
use micabox_oci::Digest;

/// Why a layer can't be imported. The store has no part of the layer then.
#[derive(Debug, thiserror::Error)]
#[error("layer {layer}: {reason}")]
pub struct Error {
    /// The blob's digest, or the diff ID where the blob has none.
    pub layer: Digest,
    /// The problem.
    #[source]
    pub reason: Reason,
}

impl Error {
    /// Returns whether fetching the blob again may help: the source failed, or the blob ended
    /// early or is damaged.
    pub fn is_transfer(&self) -> bool {
        matches!(
            self.reason,
            Reason::Source(_)
                | Reason::TooShort { .. }
                | Reason::TooLong { .. }
                | Reason::BlobDigest { .. }
        )
    }
}

impl Error {
    /// Returns whether the source or the worker failed, so that another attempt may continue from
    /// there.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self.reason, Reason::Source(_) | Reason::Worker(_))
    }

    /// Returns whether the blob is not the one that the manifest names.
    #[must_use]
    pub fn is_other_blob(&self) -> bool {
        matches!(self.reason, Reason::BlobDigest { .. })
    }

    /// Returns whether the blob's bytes are invalid, as opposed to a failure of the host.
    #[must_use]
    pub fn is_about_bytes(&self) -> bool {
        !matches!(
            self.reason,
            Reason::Source(_)
                | Reason::Write(_)
                | Reason::Store(_)
                | Reason::Kind { .. }
                | Reason::Worker(_)
        )
    }
}

/// Problem of a layer, or of its import.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The source of the blob failed.
    #[error("reading the blob failed: {0}")]
    Source(#[source] io::Error),

    /// The blob is longer than declared.
    #[error("the blob is longer than the {declared} bytes that the manifest declares")]
    TooLong {
        /// The manifest's size in bytes.
        declared: u64,
    },

    /// The blob is shorter than declared.
    #[error("the blob ends after {got} of the {declared} bytes that the manifest declares")]
    TooShort {
        /// The manifest's size in bytes.
        declared: u64,
        /// Bytes that arrived.
        got: u64,
    },

    /// The blob is not the one that the manifest names.
    #[error("the blob's digest is {actual}: it was damaged or replaced on its way here")]
    BlobDigest {
        /// Digest of its bytes.
        actual: Digest,
    },

    /// The blob is the right one, but the config's diff ID is not the digest of its uncompressed
    /// bytes.
    #[error("uncompressed it has the diff ID {actual}, but the image's config says {expected}")]
    DiffId {
        /// The config's diff ID.
        expected: Digest,
        /// Digest of the uncompressed bytes.
        actual: Digest,
    },

    /// The media type is not one of a layer with files, or not one that can be read.
    #[error("media type `{media_type}`: {problem}")]
    MediaType {
        /// The manifest's media type.
        media_type: String,
        /// Why it is refused.
        problem: &'static str,
    },

    /// The store has a layer of another kind under the same diff ID: an EROFS image begins like
    /// an empty archive, and one that mica has converted is one of any tool's as well.
    #[error(
        "media type `{media_type}`: the store has the layer {diff_id} of another kind (archive, EROFS image, EROFS \
         image converted from another archive); remove the images that have it first"
    )]
    Kind {
        /// The manifest's media type.
        media_type: String,
        /// The layer.
        diff_id: Digest,
    },

    /// Compressed with an algorithm that OCI has no media type for.
    #[error("it is compressed with {0}; layers are plain tar, gzip or zstd")]
    Compression(ForeignCompression),

    /// The blob is the declared one, but its compressed data is invalid.
    #[error("{0}")]
    Compressed(String),

    /// The uncompressed bytes are not a tar archive.
    #[error("the archive is damaged at byte {offset}{}: {problem}", after(.entry))]
    Archive {
        /// Offset in the uncompressed layer at which reading stopped.
        offset: u64,
        /// The entry that was being read, or the one before.
        entry: Option<String>,
        /// The problem.
        problem: String,
    },

    /// An entry can't exist in a filesystem.
    #[error("entry `{entry}`: {problem}")]
    Entry {
        /// Its name in the archive.
        entry: String,
        /// The problem.
        problem: String,
    },

    /// The layer exceeds a limit of the settings.
    #[error(
        "{}exceeds the limit `{setting}` of {limit}, which can be raised in the settings",
        .entry.as_ref().map(|entry| format!("entry `{entry}` ")).unwrap_or_default()
    )]
    Limit {
        /// The setting.
        setting: Limit,
        /// Its value.
        limit: u64,
        /// The entry that exceeded the limit, if one did.
        entry: Option<String>,
    },

    /// The layer's blob is a filesystem image that breaks a rule for layers.
    #[error("its EROFS image can't be used: {0}")]
    ForeignErofs(String),

    /// The layer's blob is an EROFS image of another checksum than its manifest says: it was published from a damaged
    /// store.
    #[error("its EROFS image has the checksum {actual}, but its manifest says {expected}")]
    Checksum {
        /// What the manifest says.
        expected: Checksum,
        /// What it is.
        actual: Checksum,
    },

    /// Writing the image failed.
    #[error("writing its EROFS image failed: {0}")]
    Write(#[source] io::Error),

    /// The layer exceeds a limit of EROFS.
    #[error("its EROFS image can't be made: {0}")]
    Erofs(String),

    /// The process that converts the layer failed.
    #[error("the worker process that converts it failed: {0}")]
    Worker(String),

    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Reason {
    /// Returns whether damage to the blob could have this effect, so that a wrong digest is the
    /// better explanation.
    pub(super) fn may_be_damage(&self) -> bool {
        matches!(
            self,
            Self::Compressed(_) | Self::Archive { .. } | Self::Entry { .. }
        )
    }
}

fn after(entry: &Option<String>) -> String {
    entry
        .as_ref()
        .map(|entry| format!(", at or after entry `{entry}`"))
        .unwrap_or_default()
}
