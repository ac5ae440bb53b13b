//! Why pulls fail.

use std::io;
use std::path::PathBuf;

use micabox_image::convert;
use micabox_image::manifest::ManifestError;
use micabox_image::store;
use micabox_image::{Digest, Platform, Reference};
use micabox_registry::RegistryError;
use micabox_trust::{PolicyError, Refused, SignatureError};

use crate::lookaside::BesideError;

/// Why a pull failed. Complete layers stay in the store, so the next attempt continues from there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// The registry, or the connection to it, failed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The registry's image under that name can't be used.
    #[error("cannot use {reference}: {source}")]
    Manifest {
        /// The image.
        reference: Box<Reference>,
        /// What is wrong with it.
        source: Box<ManifestError>,
    },
    /// The policy does not let it be used.
    #[error("cannot use {image}: {source}")]
    Refused {
        /// The image.
        image: String,
        /// Which part of the policy, and why.
        source: Box<Refused>,
    },
    /// Its signatures, which the policy asks for, can't be read.
    #[error("cannot use {image}: {source}")]
    Signatures {
        /// The image.
        image: String,
        /// What is wrong with them.
        source: SignatureError,
    },
    /// Its signatures, which the policy asks for, can't be fetched from beside its registry.
    #[error("cannot use {image}: {source}")]
    Beside {
        /// The image.
        image: String,
        /// Why.
        source: BesideError,
    },
    /// The policy can't be used, so that no image may be pulled.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A layer can't be imported.
    #[error("cannot pull {reference}: {source}{}", from.as_deref().map(|host| format!(" (the blob came from {host})")).unwrap_or_default())]
    Layer {
        /// The image.
        reference: Box<Reference>,
        /// The registry or mirror that sent it, if the whole blob arrived, or the part of it that is wrong.
        from: Option<String>,
        /// What is wrong with it.
        source: Box<convert::Error>,
    },
    /// The rest of a layer, of which a part is here, can't be fetched.
    #[error("cannot fetch the rest of layer {layer}: {source}")]
    Parts {
        /// The layer's diff ID.
        layer: Digest,
        /// The registry's error, or what is wrong with what it sent.
        source: io::Error,
    },
    /// A part of a snapshot lies.
    #[error("cannot use the snapshot {reference}: {problem}")]
    Snapshot {
        /// The snapshot.
        reference: Box<Reference>,
        /// Which part, and what is wrong with it.
        problem: String,
    },
    /// A file of a snapshot can't be written.
    #[error("cannot write {}: {source}", path.display())]
    Written {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The pull policy is `never`.
    #[error(
        "{reference} for {platform} is not in the store, and the pull policy is `never`: \
         `mica pull` it first"
    )]
    Never {
        /// The image.
        reference: Box<Reference>,
        /// The platform.
        platform: Box<Platform>,
    },
    /// It was [cancelled](crate::PullOptions::cancellation).
    #[error("the pull of {reference} was cancelled")]
    Cancelled {
        /// The image.
        reference: Box<Reference>,
    },
    /// The system refuses to start threads.
    #[error("cannot start the threads that a pull needs: {0}")]
    Threads(#[source] io::Error),
}
