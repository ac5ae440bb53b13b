//! Makes an image's own files: the merged metadata of its layers, and the fixup for a stack.

use std::fs::File;

use micabox_erofs::merge::{self, Merge, Written};
use micabox_erofs::{BLOCK_SIZE, Cached};

use super::checksum::ChecksummedFile;
use super::error::{Context, Error, Result};
use super::images::{FIXUP, FSMETA, FileRecord};
use super::layers::{Layer, PADDING, pad_and_sync};
use super::scratch::Scratch;
use crate::identity;
use micabox_oci::Digest;

/// The files that were made.
pub(super) struct Made {
    pub fsmeta: FileRecord,
    pub fixup: Option<FileRecord>,
    pub first_layer: usize,
}

/// Merges `layers`, the lowest first, into files in `scratch`.
pub(super) fn make(scratch: &Scratch, image: &Digest, layers: &[Layer]) -> Result<Made> {
    let mut sources = Vec::new();
    for layer in layers {
        let file = File::open(&layer.path).context("open", &layer.path)?;
        let source = Cached::new(file).context("read", &layer.path)?;
        sources.push((layer.diff_id.hex(), source));
    }
    let inputs: Vec<_> = sources
        .iter()
        .map(|(tag, image)| merge::Layer {
            image,
            tag: tag.as_bytes(),
        })
        .collect();
    let failed = |source| match source {
        micabox_erofs::Error::Output(error) => Err::<(), _>(error)
            .context("write the image in", scratch.directory())
            .unwrap_err(),
        source => Error::Merge {
            image: *image,
            source,
        },
    };
    let merge = Merge::of(&inputs, (PADDING / BLOCK_SIZE) as u32).map_err(failed)?;

    let diff_ids = || layers.iter().map(|layer| &layer.diff_id);
    let write = |name, write: &dyn Fn(ChecksummedFile) -> micabox_erofs::Result<_>| {
        let out = ChecksummedFile::new(scratch.create(name)?);
        let (out, written): (ChecksummedFile, Written) = write(out).map_err(failed)?;
        let (file, checksum) = out
            .finish()
            .context("write the image in", scratch.directory())?;
        pad_and_sync(&file, written.padded_blocks.into(), scratch)?;
        Ok(FileRecord {
            blocks: written.blocks.into(),
            checksum,
        })
    };
    let fsmeta = write(FSMETA, &|out| {
        merge.write_fsmeta(out, identity::fsmeta_uuid(diff_ids()))
    })?;
    let fixup = if merge.needs_fixup() {
        Some(write(FIXUP, &|out| {
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
