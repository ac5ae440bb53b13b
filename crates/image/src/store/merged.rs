//! Makes an image's own files: the merged metadata of its layers, whole or trimmed, and the fixup for
//! a stack.

use std::fs::File;
use std::path::Path;

use micabox_erofs::merge::{self, Merge, Written};
use micabox_erofs::{BLOCK_SIZE, Cached, ReadAt};
use micabox_verity::Tree;

use super::Store;
use super::checksum::ChecksummedFile;
use super::error::{Context, Error, Result};
use super::image_record::{FIXUP, FSMETA, FileRecord};
use super::layers::{Layer, PADDING, pad_and_sync};
use super::scratch::Scratch;
use crate::Trim;
use crate::hide::{Hidden, hide};
use crate::identity;
use micabox_oci::{Digest, Hasher};

/// Bytes that are read at a time.
const BUFFER: usize = 256 << 10;

/// The files that were made.
pub(super) struct Made {
    pub fsmeta: FileRecord,
    pub fixup: Option<FileRecord>,
    pub first_layer: usize,
}

/// Merges `layers`, the lowest first, into files in `scratch`.
pub(super) fn make(
    store: &Store,
    scratch: &Scratch,
    image: &Digest,
    layers: &[Layer],
) -> Result<Made> {
    let merge = merge(store, image, layers)?;
    let diff_ids = || layers.iter().map(Layer::identity);
    let fsmeta = write(store, scratch, image, FSMETA, |out| {
        merge.write_fsmeta(out, identity::fsmeta_uuid(diff_ids()))
    })?;
    let fixup = if merge.needs_fixup() {
        Some(write(store, scratch, image, FIXUP, |out| {
            merge.write_fixup(out, identity::fixup_uuid(diff_ids()))
        })?)
    } else {
        None
    };
    Ok(Made {
        fsmeta,
        fixup,
        first_layer: merge.first_layer(),
    })
}

/// Merges `layers` into an fsmeta in `scratch` that lacks what `trim` names. Equal layers and lists give
/// equal bytes.
pub(super) fn make_trimmed(
    store: &Store,
    scratch: &Scratch,
    image: &Digest,
    layers: &[Layer],
    trim: &Trim,
) -> Result<(FileRecord, Hidden)> {
    let mut merge = merge(store, image, layers)?;
    let hidden = hide(merge.tree_mut(), trim);
    let diff_ids = layers.iter().map(Layer::identity);
    let fsmeta = write(store, scratch, image, FSMETA, |out| {
        merge.write_fsmeta(out, identity::trimmed_uuid(diff_ids, trim))
    })?;
    Ok((fsmeta, hidden))
}

/// Merges `layers`, the lowest first, in memory.
pub(super) fn merge(store: &Store, image: &Digest, layers: &[Layer]) -> Result<Merge> {
    let mut sources = Vec::new();
    for layer in layers {
        let source = Cached::new(store.open_metadata(layer)?).context("read", &layer.path)?;
        sources.push((layer.identity().hex(), source));
    }
    let inputs: Vec<_> = sources
        .iter()
        .map(|(tag, image)| merge::Layer {
            image,
            tag: tag.as_bytes(),
        })
        .collect();
    Merge::of(&inputs, (PADDING / BLOCK_SIZE) as u32).map_err(|source| Error::Merge {
        image: *image,
        source,
    })
}

/// Writes and syncs one file.
fn write(
    store: &Store,
    scratch: &Scratch,
    image: &Digest,
    name: &str,
    write: impl FnOnce(ChecksummedFile) -> micabox_erofs::Result<(ChecksummedFile, Written)>,
) -> Result<FileRecord> {
    const ACTION: &str = "write the image in";
    let out = ChecksummedFile::new(scratch.create(name)?);
    let (out, written) = write(out).or_else(|error| match error {
        micabox_erofs::Error::Output(error) => Err(error).context(ACTION, scratch.directory()),
        source => Err(Error::Merge {
            image: *image,
            source,
        }),
    })?;
    let (file, checksum) = out.finish().context(ACTION, scratch.directory())?;
    pad_and_sync(&file, written.padded_blocks.into(), scratch)?;
    drop(file);
    Ok(FileRecord {
        blocks: written.blocks.into(),
        checksum,
        verity: store.sealed(&scratch.path(name)),
    })
}

/// Returns the digest of an image's merged metadata at `path`, with its hash tree: what
/// [`pack_fsmeta`](crate::export::pack_fsmeta) gives as uncompressed.
pub(super) fn fsmeta_digest(path: &Path, fsmeta: &FileRecord, layers: &[Layer]) -> Result<Digest> {
    let image = File::open(path).context("read", path)?;
    let mut tree = Tree::new(identity::fsmeta_uuid(layers.iter().map(Layer::identity)));
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; BUFFER];
    let length = fsmeta.blocks * BLOCK_SIZE;
    let mut at = 0;
    while at < length {
        let most = (length - at).min(BUFFER as u64) as usize;
        let bytes = buffer.get_mut(..most).unwrap_or_default();
        image.read_exact_at(bytes, at).context("read", path)?;
        tree.update(bytes);
        hasher.update(bytes);
        at += most as u64;
    }
    hasher.update(&tree.finish().1);
    Ok(hasher.finish())
}
