//! Layers: lookup, claims and publication.

use std::fs::File;
use std::path::PathBuf;

use micabox_erofs::BLOCK_SIZE;
use micabox_ground::locked::Mode;
use serde::{Deserialize, Serialize};

use super::Store;
use super::checksum::Checksum;
use super::durable;
use super::error::{Context, Error, Result};
use super::lock::Lock;
use super::scratch::Scratch;
use micabox_oci::{Descriptor, Digest};

use crate::Compression;
use crate::identity;

/// Image files are padded with a hole to a multiple of this many bytes: virtio-pmem's rule.
pub const PADDING: u64 = 2 << 20;

/// Metadata of a layer: the JSON file beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// The [`identity::FORMAT`] of the layer's image.
    pub format: u32,
    /// Digest of the uncompressed layer: of its archive, or of the EROFS image that it came as.
    pub diff_id: Digest,
    /// Length of the image in blocks, without its padding.
    pub blocks: u64,
    /// Checksum over these blocks.
    pub checksum: Checksum,
    /// Number of inodes.
    pub inodes: u64,
    /// Size of the uncompressed layer in bytes.
    pub uncompressed_size: u64,
    /// Number of the archive's entries and of directories that they imply.
    pub entries: u64,
    /// Extended attributes and ACLs that were left out: see `docs/oci.md`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_xattrs: u64,
    /// Of an image that was converted elsewhere: digest of its archive, as its manifest says. That the archive converts
    /// to it is not verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<Digest>,
    /// The file from which the archive can be rebuilt; `None` for a layer that was an EROFS image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<RecipeRecord>,
    /// The image's digest of fs-verity, if it was published with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verity: Option<Digest>,
}

/// The file beside a layer from which its archive can be rebuilt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipeRecord {
    /// Length in bytes.
    pub size: u64,
    /// Digest of its bytes.
    pub digest: Digest,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl LayerRecord {
    /// Returns the digest that names in images are made of, as [`Layer::identity`].
    pub(crate) fn identity(&self) -> &Digest {
        self.archive.as_ref().unwrap_or(&self.diff_id)
    }

    /// Returns whether two conversions have the same result. Recipes may differ in compression, by
    /// zstd's version.
    fn is_of_same_layer(&self, other: &Self) -> bool {
        let with = |other: &Self| Self {
            recipe: other.recipe.clone(),
            verity: other.verity,
            ..self.clone()
        };
        with(other) == *other && self.recipe.is_some() == other.recipe.is_some()
    }

    /// Returns one sentence for the user about the conversion, if there is something to know.
    #[must_use]
    pub fn notice(&self) -> Option<String> {
        (self.dropped_xattrs > 0).then(|| {
            format!(
                "layer {}: {} extended attributes or ACLs were left out, as they mean nothing \
                 to Linux",
                self.diff_id, self.dropped_xattrs
            )
        })
    }

    /// Returns the length of the image in blocks, with its padding.
    pub fn padded_blocks(&self) -> u64 {
        padded_blocks(self.blocks)
    }
}

/// Returns the length in blocks of an image file with its padding.
pub(crate) fn padded_blocks(blocks: u64) -> u64 {
    blocks.saturating_mul(BLOCK_SIZE).next_multiple_of(PADDING) / BLOCK_SIZE
}

/// A layer in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Digest of the uncompressed layer, which names it: of its archive, or of the EROFS image that it came as.
    pub diff_id: Digest,
    /// Its filesystem image, which is missing while the layer is [packed](Store::pack), which [`Store::open_layer`] reads
    /// as well, or only a part of it is here ([`Store::is_lazy`]).
    pub path: PathBuf,
    /// Length of the image in blocks of 4 KiB, with its padding.
    pub blocks: u64,
    /// Its other metadata.
    pub record: LayerRecord,
}

impl Layer {
    /// Returns the digest that names in images are made of: the UUID of the layer's, tags and UUIDs of those that are
    /// merged from it. The diff ID, unless the layer was converted elsewhere.
    #[must_use]
    pub fn identity(&self) -> &Digest {
        self.record.identity()
    }

    /// Returns the length of its filesystem image in bytes, without its padding.
    #[must_use]
    pub fn image_size(&self) -> u64 {
        self.record.blocks * BLOCK_SIZE
    }

    /// Returns the descriptor of its uncompressed archive.
    #[must_use]
    pub fn uncompressed(&self) -> Descriptor {
        Descriptor {
            media_type: Compression::None.media_type().to_owned(),
            digest: self.diff_id,
            size: self.record.uncompressed_size,
        }
    }
}

/// The layer that a blob contains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlobRecord {
    pub diff_id: Digest,
}

impl Store {
    /// Returns the layer with this diff ID, if the store has it in the current format.
    ///
    /// # Errors
    ///
    /// None at present: a layer whose record can't be read counts as missing.
    pub fn layer(&self, diff_id: &Digest) -> Result<Option<Layer>> {
        let record = durable::read_json::<LayerRecord>(&self.layout.layer_record(diff_id));
        // A damaged record counts as missing: making the layer again replaces it.
        let Ok(Some(record)) = record else {
            return Ok(None);
        };
        let path = self.layout.layer(diff_id);
        let layer = Layer {
            diff_id: *diff_id,
            blocks: record.padded_blocks(),
            path,
            record,
        };
        let is_there = || match std::fs::metadata(&layer.path) {
            Ok(metadata) => metadata.len() == layer.blocks * BLOCK_SIZE,
            // Without a lock: it may be unpacked meanwhile, or its chunks be in another pack.
            Err(_) => {
                let is_packed = |_| self.has_packed(diff_id, layer.record.blocks);
                (0..2).any(is_packed)
                    || self.has_lazy(diff_id, layer.record.blocks)
                    || layer.path.exists()
            }
        };
        let usable = layer.record.format == identity::FORMAT
            && layer.record.diff_id == *diff_id
            && is_there();
        Ok(usable.then_some(layer))
    }

    /// Returns the diff ID of the layer in this blob, if the blob was converted here. The layer
    /// itself may have been removed.
    ///
    /// # Errors
    ///
    /// None at present: a record that can't be read counts as missing.
    pub fn diff_id_of_blob(&self, blob: &Digest) -> Result<Option<Digest>> {
        // A damaged index entry only costs a transfer.
        let record = durable::read_json::<BlobRecord>(&self.layout.blob(blob)).unwrap_or(None);
        Ok(record.map(|record| record.diff_id))
    }

    /// Returns the layer that was made from this blob, or else the right to make it. Waits while
    /// another process or thread makes it.
    ///
    /// A layer that was made from another blob is not returned: its diff ID is what a converter
    /// claimed, which that blob may have compromised. [`LayerClaim::publish`] compares the two.
    /// Without a digest of the blob any layer with the diff ID is returned.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a lock can't be taken.
    pub fn claim_layer(&self, diff_id: &Digest, blob: Option<&Digest>) -> Result<Claim> {
        let is_of_blob = || match blob {
            Some(blob) => Ok(self.diff_id_of_blob(blob)? == Some(*diff_id)),
            None => Ok(true),
        };
        // One of which only a part is here is made anew.
        let layer = || -> Result<_> {
            let layer = self.layer(diff_id)?;
            Ok(layer.filter(|layer| !self.is_lazy(layer)))
        };
        let shared = self.shared()?;
        if is_of_blob()?
            && let Some(layer) = layer()?
        {
            return Ok(Claim::Present(layer));
        }
        let lock = Lock::wait(&self.layout.layer_lock(diff_id), Mode::Exclusive)?;
        Ok(match layer()? {
            Some(layer) if is_of_blob()? => Claim::Present(layer),
            present => Claim::Missing(LayerClaim {
                store: self.clone(),
                diff_id: *diff_id,
                present,
                _lock: lock,
                _shared: shared,
            }),
        })
    }
}

/// Result of [`Store::claim_layer`].
#[derive(Debug)]
pub enum Claim {
    /// The layer exists.
    Present(Layer),
    /// The owner of the claim must make the layer.
    Missing(LayerClaim),
}

/// The exclusive right to make a layer, given up when dropped.
#[derive(Debug)]
pub struct LayerClaim {
    store: Store,
    diff_id: Digest,
    /// The layer with that diff ID that another blob was converted to.
    present: Option<Layer>,
    _lock: Lock,
    // Prune removes lock files, so it must not run while one is held.
    _shared: Lock,
}

impl LayerClaim {
    /// Returns the diff ID of the layer to make.
    pub fn diff_id(&self) -> &Digest {
        &self.diff_id
    }

    /// Returns the store to make the layer in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns whether the store has a layer with that diff ID that another blob was converted to.
    pub(super) fn has_other(&self) -> bool {
        self.present.is_some()
    }

    /// Starts the layer's image. Returns its file, and the scratch directory for it and all other
    /// files until the layer is published.
    pub(crate) fn start(&self) -> Result<(Scratch, File)> {
        let scratch = Scratch::new(&self.store.layout.tmp())?;
        let file = scratch.create(IMAGE)?;
        Ok((scratch, file))
    }

    /// Publishes a finished image, its recipe, which is in the scratch directory as [`RECIPE`],
    /// and the record of its blob. An existing layer is never replaced.
    ///
    /// # Errors
    ///
    /// [`Error::OtherLayer`] if an existing layer differs from the new one.
    pub(crate) fn publish(
        &self,
        scratch: Scratch,
        file: File,
        recipe: Option<File>,
        blob: Option<Digest>,
        mut record: LayerRecord,
    ) -> Result<Layer> {
        let layout = &self.store.layout;
        if let Some(present) = &self.present {
            if !record.is_of_same_layer(&present.record) {
                return Err(Error::OtherLayer {
                    diff_id: self.diff_id,
                });
            }
            drop(scratch);
            self.note_blob(blob)?;
            return Ok(present.clone());
        }
        pad_and_sync(&file, record.padded_blocks(), &scratch)?;
        drop(file);
        record.verity = self.store.sealed(&scratch.path(IMAGE));
        durable::write_json(&scratch, RECORD, &record)?;
        // One that is there is of an image that can't be used any more.
        durable::remove_file(&layout.list(&self.diff_id))?;

        if let Some(recipe) = recipe {
            recipe.sync_all().context("sync", &scratch.path(RECIPE))?;
            durable::place(&scratch.path(RECIPE), &layout.recipe(&self.diff_id))?;
        }
        let path = layout.layer(&self.diff_id);
        // Syncs the directory, which the recipe is in, too.
        durable::publish(&scratch.path(IMAGE), &path)?;
        // The layer exists only once its record does.
        durable::publish(&scratch.path(RECORD), &layout.layer_record(&self.diff_id))?;
        self.store.remove_lazy(&self.diff_id)?;
        drop(scratch);
        self.note_blob(blob)?;
        Ok(Layer {
            diff_id: self.diff_id,
            path,
            blocks: record.padded_blocks(),
            record,
        })
    }

    /// Records that the layer was made from this blob.
    fn note_blob(&self, blob: Option<Digest>) -> Result<()> {
        let Some(blob) = blob else {
            return Ok(());
        };
        let record = BlobRecord {
            diff_id: self.diff_id,
        };
        let layout = &self.store.layout;
        durable::publish_json(&layout.tmp(), &layout.blob(&blob), &record)
    }
}

pub(super) const IMAGE: &str = "layer.erofs";
pub(crate) const RECIPE: &str = "layer.recipe";
const RECORD: &str = "layer.json";

/// Gives an image its full length and syncs it.
pub(crate) fn pad_and_sync(file: &File, blocks: u64, scratch: &Scratch) -> Result<()> {
    file.set_len(blocks * BLOCK_SIZE)
        .and_then(|()| file.sync_all())
        .context("write the image in", scratch.directory())
}
