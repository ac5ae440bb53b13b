//! What a conversion makes.

use serde::{Deserialize, Serialize};

use crate::store::{Checksum, RecipeRecord};

/// A layer whose image is written, but not published.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Converted {
    /// Length of the image in blocks.
    pub blocks: u64,
    /// Checksum of the image.
    pub checksum: Checksum,
    pub inodes: u64,
    pub uncompressed_size: u64,
    pub entries: u64,
    /// Attributes and ACLs that were left out.
    pub dropped_xattrs: u64,
    /// How to rebuild the archive, if the blob was one.
    pub recipe: Option<RecipeRecord>,
}
