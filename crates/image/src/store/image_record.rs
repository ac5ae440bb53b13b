//! The files in an image's directory, and their record.

use serde::{Deserialize, Serialize};

use super::Store;
use super::checksum::Checksum;
use super::durable;
use super::error::Result;
use super::layers::{Layer, LayerRecord};
use micabox_oci::Digest;

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const CONFIG: &str = "config.json";
pub(super) const RECORD: &str = "image.json";
pub(super) const FSMETA: &str = "fsmeta.erofs";
pub(super) const FIXUP: &str = "fixup.erofs";
pub(super) const VMDK: &str = "disk.vmdk";

/// Metadata of an image: the JSON file in its directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    /// The [`FORMAT`](crate::identity::FORMAT) of the image's files.
    pub format: u32,
    pub manifest: Digest,
    pub config: Digest,
    pub platform: String,
    pub created: Option<String>,
    /// Bottom first.
    pub layers: Vec<LayerUse>,
    pub fsmeta: FileRecord,
    pub fixup: Option<FileRecord>,
    pub first_layer: usize,
}

/// A layer at the time the image was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerUse {
    pub diff_id: Digest,
    /// Block numbers in fsmeta are valid only for a layer with these bytes.
    pub checksum: Checksum,
}

/// The record of an image file that the store wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    /// Length in blocks without padding.
    pub blocks: u64,
    pub checksum: Checksum,
    /// Its digest of fs-verity, if it was published with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verity: Option<Digest>,
}

impl From<&LayerRecord> for FileRecord {
    fn from(record: &LayerRecord) -> Self {
        Self {
            blocks: record.blocks,
            checksum: record.checksum,
            verity: record.verity,
        }
    }
}

impl From<&Layer> for LayerUse {
    fn from(layer: &Layer) -> Self {
        Self {
            diff_id: layer.diff_id,
            checksum: layer.record.checksum,
        }
    }
}

impl Store {
    /// Returns the record in an image's directory, whether or not the image is usable.
    pub(crate) fn image_record(&self, manifest: &Digest) -> Result<Option<ImageRecord>> {
        durable::read_json(&self.layout.image(manifest).join(RECORD))
    }
}
