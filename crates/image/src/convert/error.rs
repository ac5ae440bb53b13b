//! Why a layer can't be imported.

use std::io;

use crate::store;
use micabox_oci::Digest;

/// Why a layer can't be imported. Nothing of it is in the store then.
#[derive(Debug, thiserror::Error)]
#[error("layer {layer}: {reason}")]
pub struct Error {
    /// The blob's digest, or the diff ID where the blob has none.
    pub layer: Digest,
    /// What is wrong.
    #[source]
    pub reason: Reason,
}

impl Error {
    /// Whether fetching the blob again may help: it failed, ended early or came damaged.
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
    /// Whether the blob just stopped coming, so that another attempt may go on from there.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self.reason, Reason::Source(_) | Reason::Worker(_))
    }

    /// Whether something is wrong with the blob's bytes, and not with the host.
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

/// What is wrong with a layer, or with its import.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Whoever supplies the blob failed.
    #[error("reading the blob failed: {0}")]
    Source(#[source] io::Error),

    /// The blob goes on after its end.
    #[error("the blob is longer than the {declared} bytes that the manifest declares")]
    TooLong {
        /// The manifest's size in bytes.
        declared: u64,
    },

    /// The blob ends before its end.
    #[error("the blob ends after {got} of the {declared} bytes that the manifest declares")]
    TooShort {
        /// The manifest's size in bytes.
        declared: u64,
        /// Bytes that came.
        got: u64,
    },

    /// The blob is not the one that the manifest names.
    #[error("the blob's digest is {actual}: it was damaged or replaced on its way here")]
    BlobDigest {
        /// What its bytes hash to.
        actual: Digest,
    },

    /// The blob is the right one, but the image's two descriptions of it disagree.
    #[error("uncompressed it has the diff ID {actual}, but the image's config says {expected}")]
    DiffId {
        /// What the config says.
        expected: Digest,
        /// What its uncompressed bytes hash to.
        actual: Digest,
    },

    /// Not a kind of layer that holds files in a way we can read.
    #[error("media type `{media_type}`: {problem}")]
    MediaType {
        /// As the manifest has it.
        media_type: String,
        /// What speaks against it.
        problem: &'static str,
    },

    /// The store has a layer of other bytes' meaning under the same diff ID: an EROFS image
    /// begins as an empty archive does.
    #[error(
        "media type `{media_type}`: the store has the layer {diff_id} of the other kind, archive \
         or EROFS image; remove the images that have it first"
    )]
    Kind {
        /// As the manifest has it.
        media_type: String,
        /// The layer.
        diff_id: Digest,
    },

    /// Compressed with something that OCI has no media type for.
    #[error("it is compressed with {0}; layers are plain tar, gzip or zstd")]
    Compression(&'static str),

    /// The blob is right, but whoever made it compressed it wrongly.
    #[error("{0}")]
    Compressed(String),

    /// The uncompressed bytes are no tar archive.
    #[error("the archive is damaged at byte {offset}{}: {problem}", after(.entry))]
    Archive {
        /// Where in the uncompressed layer reading stopped.
        offset: u64,
        /// The entry that was being read, or the one before.
        entry: Option<String>,
        /// What is wrong.
        problem: String,
    },

    /// One entry can't be had in a filesystem.
    #[error("entry `{entry}`: {problem}")]
    Entry {
        /// Its name in the archive.
        entry: String,
        /// What is wrong.
        problem: String,
    },

    /// A setting forbids it.
    #[error(
        "{}exceeds the limit `{setting}` of {limit}, which can be raised in the settings",
        .entry.as_ref().map(|entry| format!("entry `{entry}` ")).unwrap_or_default()
    )]
    Limit {
        /// Name of the setting.
        setting: &'static str,
        /// Its value.
        limit: u64,
        /// The entry that went too far, if one did.
        entry: Option<String>,
    },

    /// The layer's blob is a filesystem image that breaks a rule for layers.
    #[error("its EROFS image can't be used: {0}")]
    ForeignErofs(String),

    /// Writing the image failed.
    #[error("writing its EROFS image failed: {0}")]
    Write(#[source] io::Error),

    /// The layer is more than the format can hold.
    #[error("its EROFS image can't be made: {0}")]
    Erofs(String),

    /// The process that was to convert it did not.
    #[error("the worker process that converts it failed: {0}")]
    Worker(String),

    /// The store could not take it.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Reason {
    /// Whether damage to the blob could look like this, so that its digest should have the
    /// last word.
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
