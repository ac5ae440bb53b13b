//! The name of an image.

use micabox_oci::{Digest, ParseError, Reference, Trim};
use serde::{Deserialize, Serialize};

/// An image that a sandbox uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageName {
    /// The reference under which the image was requested.
    pub reference: Option<String>,
    /// Digest of its manifest.
    pub digest: String,
    /// What the sandbox's view of it lacks.
    #[serde(default, skip_serializing_if = "Trim::is_empty")]
    pub trim: Trim,
}

impl ImageName {
    /// Names a whole image by the digest of its manifest, and by the reference under which it was requested.
    #[must_use]
    pub fn new(reference: Option<&Reference>, digest: &Digest) -> Self {
        Self {
            reference: reference.map(ToString::to_string),
            digest: digest.to_string(),
            trim: Trim::default(),
        }
    }

    /// Parses the digest of the image's manifest.
    ///
    /// # Errors
    /// It is no digest.
    pub fn parse_digest(&self) -> Result<Digest, ParseError> {
        self.digest.parse()
    }
}
