//! Opens and checks the files of an image before a machine uses them.

use std::fs::File;
use std::path::Path;

use micabox_erofs::{BLOCK_SIZE, Reader};
use micabox_image::identity;
use micabox_image::store::Image;

use crate::plan::{ImageFile, ImageFiles};
use crate::{Error, Source};

/// Returns the files of `image` after cheap checks of each: its length, and its superblock with the
/// checksum over it. Checking all bytes is for the store's fsck.
pub(crate) fn open(image: &Image) -> Result<ImageFiles, Error> {
    let layers: Result<Vec<_>, _> = image
        .layers
        .iter()
        .map(|layer| {
            check(
                &layer.path,
                layer.blocks,
                identity::layer_uuid(&layer.diff_id),
            )
        })
        .collect();
    let diff_ids = || image.layers.iter().map(|layer| &layer.diff_id);
    let fsmeta = identity::fsmeta_uuid(diff_ids());
    let fixup = image.fixup.as_ref();
    let fixup =
        fixup.map(|fixup| check(&fixup.path, fixup.blocks, identity::fixup_uuid(diff_ids())));
    Ok(ImageFiles {
        fsmeta: check(&image.fsmeta, image.fsmeta_blocks, fsmeta)?,
        layers: layers?,
        first_layer: image.first_layer,
        fixup: fixup.transpose()?,
        disk: image.vmdk.clone(),
    })
}

/// Opens all files of `image` for reading: metadata first, then its layers.
pub(crate) fn for_reading(image: &Image) -> Result<Vec<File>, Error> {
    let layers = image.layers.iter().map(|layer| &layer.path);
    let files = std::iter::once(&image.fsmeta).chain(layers).map(File::open);
    files
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Error::ImageFile {
            path: image.fsmeta.clone(),
            source: error.into(),
        })
}

fn check(path: &Path, blocks: u64, uuid: [u8; 16]) -> Result<ImageFile, Error> {
    let unusable = |source: Source| Error::ImageFile {
        path: path.to_owned(),
        source,
    };
    let size = blocks.saturating_mul(BLOCK_SIZE);
    let file = File::open(path).map_err(|error| unusable(error.into()))?;
    let metadata = file.metadata().map_err(|error| unusable(error.into()))?;
    if metadata.len() != size {
        let length = metadata.len();
        let problem = format!("it has {length} bytes and should have {size}");
        return Err(unusable(problem.into()));
    }
    let reader = Reader::open(file).map_err(|error| unusable(error.into()))?;
    if reader.uuid() != uuid {
        return Err(unusable("it holds another image".into()));
    }
    Ok(ImageFile {
        path: path.to_owned(),
        size,
        uuid,
    })
}
