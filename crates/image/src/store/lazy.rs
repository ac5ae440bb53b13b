//! Layers of which only a part is here: their metadata, and what was read of them.
//!
//! ```text
//! <diff ID>.lazy      the blob, where its chunk index is, and which image's registry has it
//! <diff ID>.blob      the blob, as far as it is here: a sparse file
//! <diff ID>.metadata  the layer's image without files' contents: a sparse file
//! ```
//!
//! Such a layer has a record as any other. Its checksum is what the manifest says. When all of the blob was fetched,
//! the layer is converted from it as any other, which fails if the checksum is another one; then these files are removed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use micabox_chunk::{FRAME_HEADER, Index};
use micabox_erofs::BLOCK_SIZE;
use micabox_lazy::{Blob, Order};
use micabox_oci::Reference;
use serde::{Deserialize, Serialize};

use super::Store;
use super::checksum::Checksum;
use super::durable;
use super::error::{Context, Error, Result};
use super::image::Image;
use super::image_record::FileRecord;
use super::layers::{Claim, Layer, LayerClaim, LayerRecord};
use super::packed::LayerImage;
use super::scratch::Scratch;
use crate::convert::{self, Converted, Expect, Known, Place};
use crate::manifest::{LayerSource, Parts};
use crate::{Descriptor, Digest, Limits, identity};

const BLOB: &str = "layer.blob";
const METADATA: &str = "layer.metadata";
const RECORD: &str = "layer.lazy";

/// The order in which a start read an image's layers, in its directory.
const ORDER: &str = "order.json";

/// Where the rest of a layer is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LazyRecord {
    /// The layer's blob.
    pub blob: Descriptor,
    /// An image whose registry has it.
    pub from: Reference,
    /// Where the chunk index is in the blob, without the header of its frame.
    index: Range<u64>,
    index_digest: Digest,
    /// Checksum of the file with the metadata.
    metadata: Checksum,
}

/// Result of [`Store::claim_lazy`].
#[derive(Debug)]
pub enum LazyClaim {
    /// The layer exists, as far as it is needed.
    Present,
    /// The layer has to be fetched whole: it is not one that can be used in parts, or the store has one of that diff ID
    /// that may be another one.
    Whole,
    /// The owner of the claim must make the layer.
    Missing(Box<LazyLayer>),
}

/// The exclusive right to make a layer of which only a part is here.
#[derive(Debug)]
pub struct LazyLayer {
    claim: LayerClaim,
    scratch: Scratch,
    blob: File,
    source: LayerSource,
    parts: Parts,
    archive: Digest,
}

impl Store {
    /// Returns the right to make a layer of which only a part is here, and which the registry of `from` has, unless it
    /// exists. Waits while another process makes it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::Full`].
    pub fn claim_lazy(&self, source: &LayerSource, from: &Reference) -> Result<LazyClaim> {
        let (Some(parts), Some(archive)) = (source.parts.clone(), source.archive) else {
            return Ok(LazyClaim::Whole);
        };
        let claim = match self.claim_layer(&source.diff_id, Some(&source.blob.digest))? {
            Claim::Present(layer) if layer.record.archive == Some(archive) => {
                return Ok(LazyClaim::Present);
            }
            Claim::Present(_) => return Ok(LazyClaim::Whole),
            Claim::Missing(claim) if claim.has_other() => return Ok(LazyClaim::Whole),
            Claim::Missing(claim) => claim,
        };
        if let Some(layer) = self.layer(&source.diff_id)? {
            let record = self.lazy_record(&source.diff_id)?;
            let is_same = record.is_some_and(|record| {
                record.blob.digest == source.blob.digest
                    && record.index_digest == parts.index_digest
                    && record.index == parts.index
                    // Another registry is not asked in place of this one, nor told what is read.
                    && record.from.registry() == from.registry()
                    && record.from.repository() == from.repository()
            });
            let is_same = is_same
                && layer.record.checksum == parts.checksum
                && layer.record.archive == Some(archive)
                && layer.image_size() == parts.length;
            return Ok(if is_same {
                LazyClaim::Present
            } else {
                LazyClaim::Whole
            });
        }
        let scratch = Scratch::new(&self.layout.tmp())?;
        let blob = scratch.create(BLOB)?;
        blob.set_len(source.blob.size)
            .context("write", &scratch.path(BLOB))?;
        Ok(LazyClaim::Missing(Box::new(LazyLayer {
            claim,
            scratch,
            blob,
            source: source.clone(),
            parts,
            archive,
        })))
    }

    /// Returns whether all of a layer's image is here, in a file of its own.
    #[must_use]
    pub fn is_whole(&self, layer: &Layer) -> bool {
        layer.path.exists()
    }

    /// Returns whether only a part of a layer is here.
    #[must_use]
    pub fn is_lazy(&self, layer: &Layer) -> bool {
        let diff_id = &layer.diff_id;
        !self.is_whole(layer)
            && !self.layout.list(diff_id).exists()
            && self.layout.lazy(diff_id).exists()
    }

    /// Returns where the rest of a layer is; none if it has none.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`].
    pub fn lazy_record(&self, diff_id: &Digest) -> Result<Option<LazyRecord>> {
        durable::read_json(&self.layout.lazy(diff_id))
    }

    /// Opens the blob of a layer of which only a part is here.
    ///
    /// # Errors
    ///
    /// [`Error::NoLayer`]; [`Error::Damaged`] if its index is.
    pub fn lazy_blob(&self, layer: &Layer) -> Result<(LazyRecord, Blob)> {
        let diff_id = &layer.diff_id;
        let record = self.lazy_record(diff_id)?;
        let record = record.ok_or(Error::NoLayer { diff_id: *diff_id })?;
        let path = self.layout.lazy_blob(diff_id);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.context("open", &path)?;
        let damaged = |problem: String| Error::Damaged {
            path: path.clone(),
            problem,
        };
        let index = read_range(&file, &record.index).context("read", &path)?;
        if Digest::of(&index) != record.index_digest {
            return Err(damaged("its chunk index is another one".to_owned()));
        }
        let end = record.index.start.saturating_sub(FRAME_HEADER);
        let index = Index::parse(&index, end).map_err(|error| damaged(error.to_string()))?;
        let blob = Blob::new(file, index).map_err(|error| damaged(error.to_string()))?;
        Ok((record, blob))
    }

    /// Converts a layer from its blob, all of which is here, as one that is pulled. Does nothing if it is whole.
    ///
    /// # Errors
    ///
    /// [`convert::Error`]: the blob is not what the manifest says. The store's.
    pub fn complete_lazy(
        &self,
        layer: &Layer,
        limits: &Limits,
        place: Place,
    ) -> Result<(), CompleteError> {
        let diff_id = &layer.diff_id;
        let Some(record) = self.lazy_record(diff_id)? else {
            return Ok(());
        };
        let Claim::Missing(claim) = self.claim_layer(diff_id, Some(&record.blob.digest))? else {
            return Ok(());
        };
        let path = self.layout.lazy_blob(diff_id);
        let blob = File::open(&path).context("open", &path)?;
        let expect = Expect {
            blob: Some(record.blob),
            diff_id: *diff_id,
            archive: layer.record.archive,
            // Another one is not published: the layer stays as it is.
            checksum: Some(layer.record.checksum),
        };
        convert::convert_claimed(claim, blob, &expect, limits, place)?;
        Ok(())
    }

    /// Returns the order in which a start of an image read its layers; none if there is none that can be read.
    #[must_use]
    pub fn start_order(&self, image: &Digest) -> Option<Order> {
        let path = self.layout.image(image).join(ORDER);
        durable::read_json(&path).ok().flatten()
    }

    /// Keeps an order for later starts of an image.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::Full`].
    pub fn keep_start_order(&self, image: &Digest, order: &Order) -> Result<()> {
        let path = self.layout.image(image).join(ORDER);
        durable::publish_json(&self.layout.tmp(), &path, order)
    }

    /// Opens a layer's image for reading its metadata; files' contents may be missing.
    pub(super) fn open_metadata(&self, layer: &Layer) -> Result<LayerImage> {
        if !self.is_lazy(layer) {
            return self.open_layer(layer);
        }
        let path = self.layout.lazy_metadata(&layer.diff_id);
        match File::open(&path) {
            Ok(file) => Ok(LayerImage::Whole(file)),
            // It has become whole meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.open_layer(layer),
            Err(error) => Err(error).context("open", &path),
        }
    }

    /// Returns what the metadata of a layer of which only a part is here has to be.
    pub(super) fn lazy_metadata(&self, layer: &Layer) -> Result<FileRecord> {
        let (record, _) = self.lazy_blob(layer)?;
        Ok(FileRecord {
            blocks: layer.record.blocks,
            checksum: record.metadata,
            verity: None,
        })
    }

    /// Returns whether a part of a layer is here from which it can be used.
    pub(super) fn has_lazy(&self, diff_id: &Digest, blocks: u64) -> bool {
        let length = |path| fs::metadata(path).ok().map(|metadata| metadata.len());
        let Ok(Some(record)) = self.lazy_record(diff_id) else {
            return false;
        };
        length(self.layout.lazy_blob(diff_id)) == Some(record.blob.size)
            && length(self.layout.lazy_metadata(diff_id)) == blocks.checked_mul(BLOCK_SIZE)
    }

    /// Removes what is needed only until a layer is whole.
    pub(super) fn remove_lazy(&self, diff_id: &Digest) -> Result<()> {
        // Without the first, the others are no part of a layer.
        durable::remove_file(&self.layout.lazy(diff_id))?;
        durable::remove_file(&self.layout.lazy_blob(diff_id))?;
        durable::remove_file(&self.layout.lazy_metadata(diff_id))
    }
}

/// Why a layer does not become whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompleteError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
    /// The blob can't be converted.
    #[error(transparent)]
    Layer(#[from] convert::Error),
}

impl Image {
    /// Returns whether only a part of one of its layers is here.
    #[must_use]
    pub fn is_lazy(&self) -> bool {
        self.layers.iter().any(|layer| self.store.is_lazy(layer))
    }
}

impl LazyLayer {
    /// Returns the blob's file, for the bytes that come.
    pub fn blob(&self) -> &File {
        &self.blob
    }

    /// Publishes the layer. The chunks of its metadata, and the index, are in the blob's file.
    ///
    /// # Errors
    ///
    /// [`convert::Error`]: the metadata is not that of a layer that mica converts, or not what the manifest says.
    pub fn publish(
        self,
        from: &Reference,
        limits: &Limits,
        place: Place,
    ) -> Result<(), convert::Error> {
        let expect = Expect {
            blob: Some(self.source.blob.clone()),
            diff_id: self.source.diff_id,
            archive: Some(self.archive),
            checksum: None,
        };
        let made = self.make(from, limits, place);
        made.map_err(|reason| expect.error(reason))
    }

    fn make(self, from: &Reference, limits: &Limits, place: Place) -> Result<(), convert::Reason> {
        let image = self.scratch.create(METADATA)?;
        let path = self.scratch.path(BLOB);
        // For reading alone.
        let blob = File::open(&path).context("open", &path)?;
        let index = read_range(&self.blob, &self.parts.index).map_err(convert::Reason::Source)?;
        let known = Known {
            index: &index,
            parts: &self.parts,
            archive: self.archive,
            blob_size: self.source.blob.size,
        };
        let converted = convert::check_metadata(&known, &blob, &image, limits, place)?;
        if converted.blocks != self.parts.length / BLOCK_SIZE {
            let problem = "its answer is about another image".to_owned();
            return Err(convert::Reason::Worker(problem));
        }
        Ok(self.place(from.clone(), &image, &converted)?)
    }

    fn place(&self, from: Reference, image: &File, converted: &Converted) -> Result<()> {
        let diff_id = self.claim.diff_id();
        let layout = &self.claim.store().layout;
        let record = LayerRecord {
            format: identity::FORMAT,
            diff_id: *diff_id,
            blocks: self.parts.length / BLOCK_SIZE,
            checksum: self.parts.checksum,
            inodes: converted.inodes,
            uncompressed_size: converted.uncompressed_size,
            entries: converted.entries,
            dropped_xattrs: converted.dropped_xattrs,
            archive: Some(self.archive),
            recipe: None,
            verity: None,
        };
        let scratch = &self.scratch;
        let path = scratch.path(METADATA);
        let lazy = LazyRecord {
            blob: self.source.blob.clone(),
            from,
            index: self.parts.index.clone(),
            index_digest: self.parts.index_digest,
            metadata: Checksum::of_file(image, self.parts.length).context("read", &path)?,
        };
        for (file, name) in [(image, METADATA), (&self.blob, BLOB)] {
            file.sync_all().context("sync", &scratch.path(name))?;
        }
        durable::write_json(scratch, RECORD, &lazy)?;
        // Those that are there are of an image that can't be used any more.
        durable::remove_file(&layout.list(diff_id))?;
        durable::remove_file(&layout.layer(diff_id))?;
        durable::place(&scratch.path(BLOB), &layout.lazy_blob(diff_id))?;
        durable::place(&scratch.path(METADATA), &layout.lazy_metadata(diff_id))?;
        durable::publish(&scratch.path(RECORD), &layout.lazy(diff_id))?;
        // The layer exists only once its record does.
        durable::publish_json(&layout.tmp(), &layout.layer_record(diff_id), &record)
    }
}

fn read_range(file: &File, range: &Range<u64>) -> io::Result<Vec<u8>> {
    let length = range.end.saturating_sub(range.start);
    if length > micabox_chunk::MOST_INDEX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes)
}
