//! The layers of an image: what the manifest and the config together say of them.
//!
//! EROFS images as layers have rules of their own: the draft [specification][spec], sections 2 and 5.
//!
//! [spec]: https://github.com/erofs/erofs-image-spec

use std::collections::HashMap;
use std::ops::Range;

use micabox_erofs::BLOCK_SIZE;
use micabox_oci::ImageConfiguration;

use super::erofs::{
    ARCHIVE, CHECKSUM, CHUNK_INDEX, DEVICE, FORMAT, INDEX_DIGEST, INDEX_RANGE, INDEX_TYPE,
    METADATA, ROLE, STACKED, UNCOMPRESSED, VERITY_BLOCK, VERITY_OFFSET, VERITY_ROOT,
};
use super::{Entry, Manifest, ManifestError, digest_of};
use crate::convert::LayerKind;
use crate::identity;
use crate::store::Checksum;
use crate::{Descriptor as Blob, Digest, Limits, printable};

/// Beginnings of annotations with which other tools mark blobs that have a layer's media type and
/// are something else. Their files, if there are any, are not the root's.
const MARKS: [(&str, &str); 4] = [
    (
        "containerd.io/snapshot/overlaybd/blob-",
        "the mark of an overlaybd device",
    ),
    (
        "containerd.io/snapshot/nydus-bootstrap",
        "the mark of a nydus bootstrap",
    ),
    (
        "containerd.io/snapshot/nydus-blob",
        "the mark of a nydus blob",
    ),
    (
        "org.opencontainers.image.enc.keys.",
        "the mark of an encrypted layer",
    ),
];

/// A layer, as a manifest and its config together describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSource {
    /// The blob.
    pub blob: Blob,
    /// Digest of the uncompressed layer, an archive or an EROFS image.
    pub diff_id: Digest,
    /// Other addresses of the blob, for layers that registries need not hold.
    pub urls: Vec<String>,
    /// Of an image that was converted elsewhere: digest of the layer's archive, as the manifest says.
    pub archive: Option<Digest>,
    /// Root digest of the image's dm-verity tree, as the manifest of one that was converted elsewhere says.
    pub verity_root: Option<Digest>,
    /// How to use it before all of its blob is here; none if the manifest doesn't say, or not in words of this version.
    pub parts: Option<Parts>,
}

/// What the manifest of a converted image says of a layer's blob, so that parts of it can be used before the rest is
/// here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// Where the chunk index is in the blob, without the header of its frame, which comes before it and is where the
    /// last chunk ends.
    pub index: Range<u64>,
    /// Digest of the index.
    pub index_digest: Digest,
    /// Length of the image in bytes: its hash tree follows it.
    pub length: u64,
    /// Where the image's metadata begins, in bytes.
    pub metadata: u64,
    /// The checksum that the image is to have in the store.
    pub checksum: Checksum,
}

impl Parts {
    /// Reads a device's annotations; `None` if one is missing, or is not as this version writes it.
    fn of(entry: &Entry) -> Option<Self> {
        let number = |text: &str| text.parse::<u64>().ok();
        if entry.annotation(INDEX_TYPE)? != micabox_chunk::MEDIA_TYPE {
            return None;
        }
        let (start, end) = entry.annotation(INDEX_RANGE)?.split_once(':')?;
        let (start, end) = (number(start)?, number(end)?);
        let index = start.checked_add(micabox_chunk::FRAME_HEADER)?..end;
        let length = number(entry.annotation(VERITY_OFFSET)?)?;
        let metadata = number(entry.annotation(METADATA)?)?;
        let is_sound = index.start < index.end
            && Some(index.end) == entry.size
            && length.is_multiple_of(BLOCK_SIZE)
            && metadata.is_multiple_of(BLOCK_SIZE)
            && metadata < length;
        is_sound.then_some(Self {
            index,
            index_digest: entry.annotation(INDEX_DIGEST)?.parse().ok()?,
            length,
            metadata,
            checksum: entry.annotation(CHECKSUM)?.parse().ok()?,
        })
    }
}

/// Returns the layers of an image, bottom first, without those that have no files.
///
/// # Errors
///
/// [`ManifestError`]: manifest and config disagree, a digest is invalid, a layer is of a kind that
/// can't be used, or a blob exceeds the limit.
pub fn layers_of(
    manifest: &Manifest,
    config: &ImageConfiguration,
    limits: &Limits,
) -> Result<Vec<LayerSource>, ManifestError> {
    let is_converted = is_converted(manifest)?;
    let diff_ids = config.rootfs().diff_ids();
    if !diff_ids.is_empty() && diff_ids.len() != manifest.layers.len() {
        return Err(ManifestError::LayerCount {
            layers: manifest.layers.len(),
            diff_ids: diff_ids.len(),
        });
    }
    let mut layers = Vec::with_capacity(manifest.layers.len());
    for (number, entry) in manifest.layers.iter().enumerate() {
        // It counts among the diff IDs nevertheless.
        if entry.media_type.starts_with(CHUNK_INDEX) {
            continue;
        }
        let blob = digest_of(entry, "manifest", "layer")?;
        let archive = if is_converted {
            // The last one is merged from the others, here as well.
            let Some(archive) = entry.annotation(ARCHIVE) else {
                continue;
            };
            Some(parse(archive, "manifest")?)
        } else {
            check_role(entry, blob)?;
            None
        };
        check_marks(entry, blob)?;
        let kind =
            LayerKind::of(Some(&entry.media_type)).map_err(|problem| ManifestError::LayerType {
                blob,
                media_type: printable(&entry.media_type),
                problem,
            })?;
        let size = entry.size.unwrap_or(0);
        if size > limits.layer_size {
            return Err(ManifestError::LayerSize {
                blob,
                size,
                limit: limits.layer_size,
            });
        }
        let known = diff_ids.get(number).map(String::as_str);
        let diff_id = match kind {
            LayerKind::Erofs | LayerKind::Device { .. } => erofs_diff_id(entry, blob, known)?,
            LayerKind::Archive => {
                let known = known.ok_or(ManifestError::LayerCount {
                    layers: manifest.layers.len(),
                    diff_ids: 0,
                })?;
                parse(known, "config")?
            }
        };
        // Only these layers may be elsewhere. For any other layer, a URL in a manifest would only
        // be a way to make a machine send requests to others.
        let foreign =
            entry.media_type.contains("nondistributable") || entry.media_type.contains(".foreign.");
        layers.push(LayerSource {
            parts: archive.and_then(|_| Parts::of(entry)),
            verity_root: archive.and_then(|_| verity_root(entry)),
            archive,
            diff_id,
            urls: if foreign {
                entry.urls.clone()
            } else {
                Vec::new()
            },
            blob: Blob {
                digest: blob,
                size,
                media_type: entry.media_type.clone(),
            },
        });
    }
    check_archives(&layers)?;
    Ok(layers)
}

/// Refuses an image of which two layers are said to be made of one archive: an archive converts to one image, and its
/// UUID, by which a guest finds devices, is made of the archive's digest.
fn check_archives(layers: &[LayerSource]) -> Result<(), ManifestError> {
    let mut known = HashMap::new();
    for layer in layers {
        let identity = layer.archive.unwrap_or(layer.diff_id);
        if *known.entry(identity).or_insert(layer.diff_id) != layer.diff_id {
            return Err(ManifestError::Archive { archive: identity });
        }
    }
    Ok(())
}

/// Returns whether the image is one that this version of mica has converted: all layers but the last are devices, whose
/// archives are known, and the last one is their merged metadata. Other images of devices are refused by their roles.
fn is_converted(manifest: &Manifest) -> Result<bool, ManifestError> {
    let Some((fsmeta, devices)) = manifest.layers.split_last() else {
        return Ok(false);
    };
    let is_erofs = |entry: &Entry| LayerKind::of(Some(&entry.media_type)) == Ok(LayerKind::Erofs);
    let is_device = |entry: &Entry| {
        entry.annotation(ROLE) == Some(DEVICE) && entry.annotation(ARCHIVE).is_some()
    };
    let has_form = fsmeta.annotation(ROLE).is_none()
        && fsmeta.annotation(ARCHIVE).is_none()
        && !devices.is_empty()
        && manifest.layers.iter().all(is_erofs)
        && devices.iter().all(is_device);
    let Some(format) = manifest.annotations.get(FORMAT).filter(|_| has_form) else {
        return Ok(false);
    };
    if *format == identity::FORMAT.to_string() {
        return Ok(true);
    }
    Err(ManifestError::Format {
        format: printable(format),
    })
}

/// Returns the digest that the merged metadata of a converted image has to have, with its hash tree.
///
/// # Errors
///
/// [`ManifestError`]: it has none, or an invalid one.
pub(crate) fn fsmeta_of(manifest: &Manifest) -> Result<Option<Digest>, ManifestError> {
    match manifest.layers.last() {
        Some(fsmeta) if is_converted(manifest)? => {
            let blob = digest_of(fsmeta, "manifest", "layer")?;
            let digest = fsmeta.annotation(UNCOMPRESSED);
            parse(digest.ok_or(ManifestError::NoDiffId { blob })?, "manifest").map(Some)
        }
        _ => Ok(None),
    }
}

/// Reads the root digest of a device's dm-verity tree; `None` if there is none over blocks of the size of ours.
fn verity_root(entry: &Entry) -> Option<Digest> {
    let block = entry.annotation(VERITY_BLOCK)?.parse::<usize>().ok()?;
    let root = entry.annotation(VERITY_ROOT)?.parse().ok()?;
    (block == micabox_verity::BLOCK).then_some(root)
}

/// Refuses a layer that another reader of the manifest would not put on top of the ones before.
fn check_role(entry: &Entry, blob: Digest) -> Result<(), ManifestError> {
    match entry.annotation(ROLE) {
        None | Some(STACKED) => Ok(()),
        Some(name) => Err(ManifestError::ErofsRole {
            blob,
            role: printable(name),
        }),
    }
}

/// Refuses a blob that another tool marks as no layer.
fn check_marks(entry: &Entry, blob: Digest) -> Result<(), ManifestError> {
    let marks = entry
        .annotations
        .iter()
        .filter(|(_, value)| *value != "false");
    for (name, _) in marks {
        if let Some((_, what)) = MARKS.iter().find(|(mark, _)| name.starts_with(mark)) {
            let role = format!("{what} ({})", printable(name));
            return Err(ManifestError::Role { blob, role });
        }
    }
    Ok(())
}

/// Returns the diff ID of a layer that is an EROFS image: the annotation's, or else the config's,
/// or else, of an image that isn't compressed, the blob's digest.
fn erofs_diff_id(
    entry: &Entry,
    blob: Digest,
    known: Option<&str>,
) -> Result<Digest, ManifestError> {
    match (entry.annotation(UNCOMPRESSED), known) {
        (Some(annotated), _) => parse(annotated, "manifest"),
        (None, Some(known)) => parse(known, "config"),
        (None, None) if !entry.media_type.contains('+') => Ok(blob),
        (None, None) => Err(ManifestError::NoDiffId { blob }),
    }
}

fn parse(digest: &str, document: &'static str) -> Result<Digest, ManifestError> {
    digest.parse().map_err(|source| ManifestError::Digest {
        document,
        of: "layer",
        source,
    })
}
