//! Opens and checks the files of an image before a machine uses them.

use std::fs::File;
use std::path::Path;

use micabox_erofs::{BLOCK_SIZE, Reader};
use micabox_error::{Error, Source};
use micabox_image::identity;
use micabox_image::store::{Image, Layer};
use micabox_vmm::MachineFile;

use crate::layers::{self, Opened};

/// One file of an image.
#[derive(Clone, Debug)]
pub struct ImageFile {
    /// The file, open for reading.
    pub file: MachineFile,
    /// The UUID in its superblock.
    pub uuid: [u8; 16],
}

/// All files of an image.
#[derive(Clone, Debug)]
pub struct ImageFiles {
    /// The merged image's metadata.
    pub fsmeta: ImageFile,
    /// The layers, bottom first.
    pub layers: Vec<ImageFile>,
    /// Index of the lowest visible layer; a stack has none below it.
    pub first_layer: usize,
    /// The fixup that a stack of the layers needs on top to show what fsmeta shows. Its device
    /// table lists all layers.
    pub fixup: Option<ImageFile>,
}

impl ImageFiles {
    /// Returns whether all layers can be read as files. Otherwise they have to be asked for, and must not be mapped.
    pub fn are_readable(&self) -> bool {
        let mut parts = self.layers.iter().filter_map(|layer| layer.file.part());
        parts.all(|part| part.is_readable)
    }
}

/// Who reads the files of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Those that read files.
    OfFiles,
    /// Those that ask for what they read of layers that are not whole.
    OfParts,
}

/// Opens the files of `image`, with cheap checks of each: its length, and its superblock with the
/// checksum over it. Checking all bytes is for the store's fsck.
pub fn open(image: &Image, readers: Readers) -> Result<ImageFiles, Error> {
    let opened = match readers {
        Readers::OfParts => layers::open_parts(image)?,
        Readers::OfFiles => {
            let files = layers::open(image)?.into_iter();
            files.map(|file| Opened { file, part: None }).collect()
        }
    };
    let layers: Result<Vec<_>, _> = image
        .layers
        .iter()
        .zip(opened)
        .map(|(layer, Opened { file, part })| {
            let file = MachineFile::new(file, &layer.path).map(|file| file.in_part(part));
            check(
                &layer.path,
                file,
                layer.blocks,
                identity::layer_uuid(layer.identity()),
            )
        })
        .collect();
    let diff_ids = || image.layers.iter().map(Layer::identity);
    let checked = |path: &Path, blocks, uuid| check(path, MachineFile::open(path), blocks, uuid);
    let fixup = image.fixup.as_ref();
    let fixup =
        fixup.map(|fixup| checked(&fixup.path, fixup.blocks, identity::fixup_uuid(diff_ids())));
    Ok(ImageFiles {
        fsmeta: checked(&image.fsmeta, image.fsmeta_blocks, image.fsmeta_uuid())?,
        layers: layers?,
        first_layer: image.first_layer,
        fixup: fixup.transpose()?,
    })
}

/// Opens all files of `image` for reading, checked as [`open`] does: metadata first, then its layers.
pub fn for_reading(image: &Image) -> Result<Vec<File>, Error> {
    let files = open(image, Readers::OfFiles)?;
    let files = std::iter::once(&files.fsmeta).chain(&files.layers);
    let files = files.map(|file| {
        let again = file.file.file().try_clone();
        again.map_err(|error| Error::ImageFile {
            path: file.file.path().to_owned(),
            source: error.into(),
        })
    });
    files.collect()
}

fn check(
    path: &Path,
    file: Result<MachineFile, micabox_vmm::Error>,
    blocks: u64,
    uuid: [u8; 16],
) -> Result<ImageFile, Error> {
    let unusable = |source: Source| Error::ImageFile {
        path: path.to_owned(),
        source,
    };
    let size = blocks.saturating_mul(BLOCK_SIZE);
    let file = file.map_err(|error| match error {
        micabox_vmm::Error::File { why, .. } => unusable(why.into()),
        error => unusable(error.into()),
    })?;
    let length = file.length();
    if length != size {
        let problem = format!("it has {length} bytes and should have {size}");
        return Err(unusable(problem.into()));
    }
    let reader = Reader::open(&**file.file()).map_err(|error| unusable(error.into()))?;
    if reader.uuid() != uuid {
        return Err(unusable("it holds another image".into()));
    }
    Ok(ImageFile { file, uuid })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use micabox_image::convert::Place;
    use micabox_image::{LoadOptions, Settings, Store, progress};
    use micabox_testing::image as sample;

    use super::*;

    fn superblock(file: &MachineFile) -> [u8; 128] {
        let mut bytes = [0; 128];
        file.file().read_exact_at(&mut bytes, 1024).unwrap();
        bytes
    }

    #[test]
    fn a_layer_that_is_replaced_after_its_check_is_not_the_machines() {
        let directory = tempfile::tempdir().unwrap();
        let archive = directory.path().join("box.tar");
        sample::write_archive(&archive, &sample::layers(), &sample::config());
        let store = Store::open(&directory.path().join("store")).unwrap();
        let options = LoadOptions {
            platform: None,
            settings: Arc::new(Settings {
                conversion: Place::Here,
                ..Settings::default()
            }),
        };
        micabox_image::load(&store, &archive, None, &options, &progress::Silent).unwrap();
        let image = store.image("box").unwrap();

        // A layer in the place of another one is noticed.
        let [first, second] = [0, 1].map(|index| &image.layers[index]);
        let uuid = identity::layer_uuid(&second.diff_id);
        let error = check(
            &first.path,
            MachineFile::open(&first.path),
            first.blocks,
            uuid,
        )
        .unwrap_err();
        assert!(error.to_string().contains("another image"), "{error}");

        let opened = open(&image, Readers::OfFiles).unwrap();
        let all = || std::iter::once(&opened.fsmeta).chain(&opened.layers);
        let before: Vec<_> = all().map(|file| superblock(&file.file)).collect();
        let other = directory.path().join("other");
        for file in all() {
            std::fs::write(&other, vec![0; 8192]).unwrap();
            std::fs::rename(&other, file.file.path()).unwrap();
        }
        let after: Vec<_> = all().map(|file| superblock(&file.file)).collect();
        assert_eq!(after, before);
        let replaced = open(&image, Readers::OfFiles).unwrap_err().to_string();
        assert!(replaced.contains("it has 8192 bytes"), "{replaced}");
    }
}
