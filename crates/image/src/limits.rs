//! Limits on what a layer may cost; the import of a layer that exceeds one is refused.
//!
//! The defaults are well above any image that is built for use: they limit what a hostile layer
//! can take from the host. All of them are settings, and an error about one names it.

use std::fmt;

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Memory in bytes that any entry takes during the import, measured with archives of a million
/// empty files.
pub const ENTRY_MEMORY: u64 = 512;

/// Limits on one layer. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    /// Uncompressed size of a layer's archive, and bytes of files in a layer that was an EROFS
    /// image, whose files may share theirs.
    pub layer_size: u64,
    /// Entries in a layer's archive, and directories that are made for entries without a parent.
    /// Each takes a few hundred bytes of memory during the import.
    pub entries: u64,
    /// Memory for everything in a layer except its files' bytes: [`ENTRY_MEMORY`] for each entry,
    /// and names, link targets, extended attributes and the parts of sparse files. Layers that are
    /// converted at the same time [share it](Self::shared_by).
    pub metadata_size: u64,
    /// How many times its blob's size that memory may be once it is more than
    /// [`Self::metadata_ratio_from`].
    pub metadata_ratio: u64,
    /// Memory for metadata from which [`Self::metadata_ratio`] applies.
    pub metadata_ratio_from: u64,
    /// Length of an entry's path, and of a hard link's target.
    pub path_length: u64,
    /// Number of components of an entry's path.
    pub path_depth: u64,
    /// Size of one entry's extended header records and long names together.
    pub header_size: u64,
    /// Size of all names and values of one entry's extended attributes.
    pub xattr_size: u64,
    /// Number of data segments of one sparse file.
    pub sparse_segments: u64,
    /// How many times larger than its blob a layer may become once it is larger than
    /// [`Self::compression_ratio_from`].
    pub compression_ratio: u64,
    /// Uncompressed size from which [`Self::compression_ratio`] applies.
    pub compression_ratio_from: u64,
    /// Memory that a zstd frame may require for its window; 128 MiB is the default of `zstd -d`.
    pub zstd_window: u64,
    /// Seconds for which the worker that converts a layer may neither read nor write while it has
    /// input: then it is killed.
    pub idle_timeout: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let member = micabox_tar::Limits::default();
        Self {
            layer_size: 1024 * GIB,
            entries: 8 * 1000 * 1000,
            metadata_size: GIB,
            metadata_ratio: 128,
            metadata_ratio_from: 128 * MIB,
            path_length: member.path_length,
            path_depth: 2048,
            header_size: member.header_size,
            xattr_size: member.xattr_size,
            sparse_segments: member.sparse_segments,
            compression_ratio: 500,
            compression_ratio_from: 4 * GIB,
            zstd_window: 128 * MIB,
            idle_timeout: 60,
        }
    }
}

impl Limits {
    /// Returns the limits on each of some layers that are converted at the same time.
    #[must_use]
    pub fn shared_by(&self, layers: usize) -> Self {
        Self {
            metadata_size: self.metadata_size / (layers as u64).max(1),
            ..self.clone()
        }
    }

    /// Returns the limits on one member of an archive.
    #[must_use]
    pub fn member(&self) -> micabox_tar::Limits {
        micabox_tar::Limits {
            header_size: self.header_size,
            path_length: self.path_length,
            xattr_size: self.xattr_size,
            sparse_segments: self.sparse_segments,
        }
    }
}

/// A limit that an import may exceed, named as the setting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // as the fields of `Limits`
pub enum Limit {
    LayerSize,
    Entries,
    MetadataSize,
    MetadataRatio,
    PathLength,
    PathDepth,
    HeaderSize,
    XattrSize,
    SparseSegments,
    CompressionRatio,
    ZstdWindow,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settings_file_names_only_what_it_changes() {
        let limits: Limits = serde_json::from_str(r#"{"entries": 7}"#).unwrap();
        assert_eq!(
            limits,
            Limits {
                entries: 7,
                ..Limits::default()
            }
        );
        assert!(serde_json::from_str::<Limits>(r#"{"entires": 7}"#).is_err());
    }
}
