//! Packs an image's layers and its merged metadata as the [EROFS image specification][spec] has them.
//!
//! Each layer's image becomes a `device`, and fsmeta, whose files point into them, the filesystem that is mounted:
//! `[device, ..., device, fsmeta]`. The bytes are those of the store, so they depend on the layers' archives and on
//! [`identity::FORMAT`] alone. Behind each image is its dm-verity tree; both are compressed chunk by chunk, with zstd,
//! whose version is part of what makes the blobs.
//!
//! [spec]: https://github.com/erofs/erofs-image-spec

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use micabox_chunk::{Cuts, LARGEST, Writer};
use micabox_erofs::{BLOCK_SIZE, ReadAt};
use micabox_ground::hex;
use micabox_verity::Tree;

use super::pack::{BUFFER, PackError, Packed, write_error};
use crate::identity;
use crate::manifest::erofs as names;
use crate::store::{self, Checksum, Hasher, Image, Layer, LayerImage, Store, Whole};
use crate::{Descriptor, Digest};

/// A packed EROFS image: a layer's, or the merged metadata of an image.
#[derive(Debug)]
pub struct PackedErofs {
    /// The blob.
    pub packed: Packed,
    /// Its descriptor in a manifest.
    pub entry: ErofsEntry,
}

/// An EROFS image in a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErofsEntry {
    /// The blob.
    pub blob: Descriptor,
    /// Digest of the image with its hash tree, uncompressed: the layer's diff ID.
    pub uncompressed: Digest,
    /// Length of the image with its hash tree, uncompressed, in bytes.
    pub uncompressed_size: u64,
    /// Annotations by name, in the order in which they are written.
    pub annotations: Vec<(&'static str, String)>,
}

/// Packs a layer as a device. `watch` is called with the number of bytes of the image that are packed, and returns
/// whether to continue.
///
/// # Errors
///
/// [`PackError::Stopped`] if `watch` returned false; [`store::Error::Damaged`] if the layer can't be read, or is not what
/// its archive was converted to.
pub fn pack_device(
    store: &Store,
    layer: &Layer,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<PackedErofs, PackError> {
    pack(store, Source::device(store, layer)?, watch)
}

/// Does the same, and keeps no blob.
///
/// # Errors
///
/// Those of [`pack_device`].
pub(super) fn device_entry(
    store: &Store,
    layer: &Layer,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<ErofsEntry, PackError> {
    let source = Source::device(store, layer)?;
    let (_, entry, _) = write(source, io::sink(), &layer.path, &|| (), watch)?;
    Ok(entry)
}

/// Packs an image's merged metadata, as [`pack_device`] packs a layer.
///
/// # Errors
///
/// Those of [`pack_device`].
pub fn pack_fsmeta(
    store: &Store,
    image: &Image,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<PackedErofs, PackError> {
    pack(store, Source::fsmeta(store, image)?, watch)
}

/// Does the same, and keeps no blob.
///
/// # Errors
///
/// Those of [`pack_device`].
pub(super) fn fsmeta_entry(
    store: &Store,
    image: &Image,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<ErofsEntry, PackError> {
    let source = Source::fsmeta(store, image)?;
    let (_, entry, _) = write(source, io::sink(), &image.fsmeta, &|| (), watch)?;
    Ok(entry)
}

/// Packs an image that needs no device, and is called `path` in errors.
///
/// # Errors
///
/// Those of [`pack_device`].
pub(super) fn pack_whole(
    store: &Store,
    path: &Path,
    whole: Whole,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<PackedErofs, PackError> {
    let source = Source {
        path,
        image: LayerImage::Whole(whole.file),
        length: whole.length,
        uuid: whole.uuid,
        checksum: whole.checksum,
        annotations: Vec::new(),
    };
    pack(store, source, watch)
}

/// An image file, of the store or for a registry alone.
pub(super) struct Source<'a> {
    path: &'a Path,
    image: LayerImage,
    /// Its length in bytes, without its padding.
    length: u64,
    uuid: [u8; 16],
    /// Its checksum when it was made.
    checksum: Checksum,
    /// Annotations that say what it is.
    annotations: Vec<(&'static str, String)>,
}

impl<'a> Source<'a> {
    pub(super) fn device(store: &Store, layer: &'a Layer) -> Result<Self, store::Error> {
        let mut annotations = vec![(names::ROLE, names::DEVICE.to_owned())];
        // Only of a layer that was converted here is it known.
        if layer.record.recipe.is_some() {
            annotations.push((names::ARCHIVE, layer.diff_id.to_string()));
        }
        let image = store.open_layer(layer)?;
        let mut head = [0; BLOCK_SIZE as usize];
        image
            .read_exact_at(&mut head, 0)
            .map_err(|error| read_error(&layer.path, error))?;
        let metadata = micabox_erofs::reader::metadata_start(&head).map_err(|error| {
            store::Error::Damaged {
                path: layer.path.clone(),
                problem: error.to_string(),
            }
        })?;
        annotations.extend([
            (names::METADATA, metadata.to_string()),
            (names::CHECKSUM, layer.record.checksum.to_string()),
        ]);
        Ok(Self {
            path: &layer.path,
            image,
            length: layer.image_size(),
            uuid: identity::layer_uuid(layer.identity()),
            checksum: layer.record.checksum,
            annotations,
        })
    }

    pub(super) fn fsmeta(store: &Store, image: &'a Image) -> Result<Self, store::Error> {
        let file = File::open(&image.fsmeta).map_err(|error| read_error(&image.fsmeta, error))?;
        let record = store.fsmeta_record(&image.manifest_digest)?;
        Ok(Self {
            path: &image.fsmeta,
            image: LayerImage::Whole(file),
            length: record.blocks * BLOCK_SIZE,
            uuid: identity::fsmeta_uuid(image.layers.iter().map(Layer::identity)),
            checksum: record.checksum,
            annotations: Vec::new(),
        })
    }
}

/// Packs an image into an unnamed file.
fn pack(
    store: &Store,
    source: Source<'_>,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<PackedErofs, PackError> {
    let scratch = store.scratch()?;
    let path = scratch.path("blob");
    let failed = |error| write_error(&path, error);
    let out = BufWriter::with_capacity(BUFFER, scratch.create("blob")?);
    let (out, entry, _) = write(source, out, &path, &|| (), watch)?;
    let mut file = out
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    file.rewind().map_err(failed)?;
    let blob = entry.blob.clone();
    let packed = Packed { file, blob };
    Ok(PackedErofs { packed, entry })
}

/// Writes an image's blob to `out`, which is called `path` in errors. Also returns where its chunk index is, with the
/// header of its frame. `at_tree` is called before the hash tree, when at
/// most one chunk of the image is still to be written.
pub(super) fn write<W: Write>(
    source: Source<'_>,
    out: W,
    path: &Path,
    at_tree: &dyn Fn(),
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<(W, ErofsEntry, Range<u64>), PackError> {
    let failed = |error| write_error(path, error);
    let mut writer = Writer::new(out).map_err(failed)?;
    let mut tree = Tree::new(source.uuid);
    // What is published must be what was converted, and not what a disk has made of it.
    let mut checked = Hasher::new();
    let mut buffer = vec![0; LARGEST as usize];
    let image = &source.image;
    let starts = store::file_starts(image, source.length, source.path)?;
    for cut in Cuts::new(starts, source.length) {
        let bytes = buffer
            .get_mut(..(cut.end - cut.start) as usize)
            .unwrap_or_default();
        image
            .read_exact_at(bytes, cut.start)
            .map_err(|error| read_error(source.path, error))?;
        tree.update(bytes);
        checked
            .write(cut.start, bytes)
            .map_err(|error| read_error(source.path, error))?;
        writer.chunk(bytes).map_err(failed)?;
        if !watch(cut.end) {
            return Err(PackError::Stopped);
        }
    }
    let checksum = checked.finish();
    if checksum != source.checksum {
        return Err(PackError::from(store::Error::Damaged {
            path: source.path.to_owned(),
            problem: format!("its checksum is {checksum} instead of {}", source.checksum),
        }));
    }
    at_tree();
    let (root, tree) = tree.finish();
    for part in tree.chunks(LARGEST as usize) {
        writer.chunk(part).map_err(failed)?;
    }
    let (out, written) = writer.finish().map_err(failed)?;
    let Range { start, end } = written.index.clone();
    let root = hex(root);
    let mut annotations = source.annotations;
    annotations.extend([
        (names::UNCOMPRESSED, written.uncompressed.to_string()),
        (names::INDEX_RANGE, format!("{start}:{end}")),
        (names::INDEX_DIGEST, written.index_digest.to_string()),
        (names::INDEX_TYPE, micabox_chunk::MEDIA_TYPE.to_owned()),
        (names::VERITY_OFFSET, source.length.to_string()),
        (names::VERITY_ROOT, format!("sha256:{root}")),
        (names::VERITY_BLOCK, micabox_verity::BLOCK.to_string()),
    ]);
    let blob = Descriptor {
        media_type: names::MEDIA_TYPE.to_owned(),
        digest: written.digest,
        size: written.size,
    };
    let entry = ErofsEntry {
        blob,
        uncompressed: written.uncompressed,
        uncompressed_size: written.uncompressed_size,
        annotations,
    };
    Ok((out, entry, written.index))
}

pub(super) fn read_error(path: &Path, source: std::io::Error) -> store::Error {
    store::Error::Io {
        action: "read",
        path: PathBuf::from(path),
        source,
    }
}
