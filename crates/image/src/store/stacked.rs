//! Makes what a stack of an image's layers lacks where each of them is a filesystem alone: the fixup with its files'
//! contents, and a lowest layer without whiteouts, which have nothing to hide there.

use std::fs::File;

use micabox_erofs::format::FileType;
use micabox_erofs::merge::{self, Merge};
use micabox_erofs::{BLOCK_SIZE, Concat, Error as ErofsError, ReadAt, Reader, Summary, overlay};

use super::Store;
use super::checksum::{Checksum, ChecksummedFile};
use super::error::{Context, Error, Result};
use super::image::Image;
use super::layers::{Layer, PADDING};
use super::merged;
use super::scratch::Scratch;
use crate::identity;

/// Names of the files.
const BOTTOM: &str = "bottom.erofs";
const FIXUP: &str = "fixup.erofs";

/// What a stack has beside the layers of an image.
pub(crate) struct Stacked {
    /// Index of the lowest layer that is visible: the stack begins there.
    pub first_layer: usize,
    /// In place of that layer, if it has whiteouts.
    pub bottom: Option<Whole>,
    /// For the top, if the layers alone show something else than the image.
    pub fixup: Option<Whole>,
}

/// An image that needs no device.
pub(crate) struct Whole {
    pub file: File,
    /// Its length in bytes.
    pub length: u64,
    pub uuid: [u8; 16],
    pub checksum: Checksum,
}

/// Makes them, in `scratch`.
pub(crate) fn stacked(store: &Store, scratch: &Scratch, image: &Image) -> Result<Stacked> {
    let digest = &image.manifest_digest;
    let merge = merged::merge(store, digest, &image.layers)?;
    let first_layer = merge.first_layer();
    let unmerged = |source| Error::Merge {
        image: *digest,
        source,
    };
    let bottom = match image.layers.get(first_layer) {
        Some(layer) if has_whiteouts(store, layer)? => {
            let contents = store.open_layer(layer)?;
            let source = merge::Layer {
                image: &contents,
                tag: b"",
            };
            let alone = Merge::of(&[source], 1).map_err(unmerged)?;
            let uuid = identity::bottom_uuid(layer.identity());
            let write = |out| alone.write_whole(&contents, out, uuid);
            Some(whole(scratch, BOTTOM, uuid, write)?.map_err(unmerged)?)
        }
        _ => None,
    };
    let fixup = if merge.needs_fixup() {
        let layers: Result<Vec<_>> = image.layers.iter().map(|l| store.open_layer(l)).collect();
        let contents = Concat::new(layers?, PADDING).context("read", &image.fsmeta)?;
        let uuid = identity::whole_fixup_uuid(image.layers.iter().map(Layer::identity));
        let write = |out| merge.write_whole_fixup(&contents, out, uuid);
        Some(whole(scratch, FIXUP, uuid, write)?.map_err(unmerged)?)
    } else {
        None
    };
    Ok(Stacked {
        first_layer,
        bottom,
        fixup,
    })
}

/// Writes one of the images to a file in `scratch`.
fn whole(
    scratch: &Scratch,
    name: &str,
    uuid: [u8; 16],
    write: impl FnOnce(ChecksummedFile) -> micabox_erofs::Result<(ChecksummedFile, Summary)>,
) -> Result<micabox_erofs::Result<Whole>> {
    const ACTION: &str = "write the image in";
    let directory = scratch.directory();
    let out = ChecksummedFile::new(scratch.create(name)?);
    let (out, summary) = match write(out) {
        Ok(written) => written,
        Err(ErofsError::Output(error)) => return Err(error).context(ACTION, directory),
        Err(error) => return Ok(Err(error)),
    };
    let (file, checksum) = out.finish().context(ACTION, directory)?;
    let length = u64::from(summary.blocks) * BLOCK_SIZE;
    // Blocks of zeros at its end were not written.
    file.set_len(length).context(ACTION, directory)?;
    Ok(Ok(Whole {
        file,
        length,
        uuid,
        checksum,
    }))
}

/// Returns whether a layer hides something of layers below.
fn has_whiteouts(store: &Store, layer: &Layer) -> Result<bool> {
    let image = micabox_erofs::Cached::new(store.open_metadata(layer)?);
    let image = image.context("read", &layer.path)?;
    let damaged = |error: ErofsError| Error::Damaged {
        path: layer.path.clone(),
        problem: error.to_string(),
    };
    let reader = Reader::open(image).map_err(damaged)?;
    let mut found = false;
    reader
        .walk(|_, inode| {
            found = found
                || (inode.kind == FileType::CharDevice && inode.device == 0)
                || (inode.kind == FileType::Directory && is_opaque(&reader, inode)?);
            Ok(())
        })
        .map_err(damaged)?;
    Ok(found)
}

fn is_opaque<R: ReadAt>(
    reader: &Reader<R>,
    directory: &micabox_erofs::reader::Inode,
) -> micabox_erofs::Result<bool> {
    let xattrs = reader.xattrs(directory)?;
    Ok(xattrs.iter().any(|xattr| &*xattr.name == overlay::OPAQUE))
}
