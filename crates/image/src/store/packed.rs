//! The packed form of a layer: its image as a list of chunks (`micabox_pack`), which it shares with other layers.
//!
//! A layer with a list needs no image of its own: reads take bytes from its chunks, and [`Store::unpack`] makes a file
//! of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use micabox_erofs::{BLOCK_SIZE, ReadAt};
use micabox_ground::locked::Mode;
use micabox_pack::{Cache, List};

use super::Store;
use super::checksum::{Checksum, next_data};
use super::durable;
use super::error::{Context, Error, Result, explain};
use super::image::Image;
use super::last_use;
use super::layers::{IMAGE, Layer, LayerRecord, pad_and_sync};
use super::lock::Lock;
use super::scratch::Scratch;
use crate::Descriptor;
use crate::manifest::erofs as names;
use micabox_oci::Digest;
use micabox_oci::progress::{self, Event, LayerState, Phase, Progress};

/// The bytes of a layer's image: of its file, or of its chunks.
#[derive(Debug)]
pub enum LayerImage {
    /// The file, with its padding.
    Whole(File),
    /// Chunks, without padding.
    Packed(Box<micabox_pack::Image>),
}

impl LayerImage {
    /// Returns the same image, which keeps what it reads of chunks where others do too.
    #[must_use]
    pub fn with_cache(self, cache: &Arc<Cache>) -> Self {
        match self {
            Self::Whole(file) => Self::Whole(file),
            Self::Packed(image) => Self::Packed(Box::new(image.with_cache(cache))),
        }
    }

    /// Computes the checksum of its first `length` bytes.
    pub(super) fn checksum(&self, length: u64) -> io::Result<Checksum> {
        Checksum::of(self, length, |at| self.next_data(at))
    }

    /// Returns the offset of the next byte that isn't in a hole, from `at` on.
    pub(super) fn next_data(&self, at: u64) -> io::Result<u64> {
        match self {
            Self::Whole(file) => next_data(file, at),
            Self::Packed(image) => Ok(image.next_data(at)),
        }
    }
}

impl ReadAt for LayerImage {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Whole(file) => ReadAt::read_exact_at(file, buffer, offset),
            Self::Packed(image) => image.read_exact_at(buffer, offset),
        }
    }

    fn size(&self) -> io::Result<u64> {
        match self {
            Self::Whole(file) => ReadAt::size(file),
            Self::Packed(image) => Ok(image.list().size()),
        }
    }
}

impl Store {
    /// Opens a layer's image for reading. It may be removed afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; [`Error::Damaged`] if its list is.
    pub fn open_layer(&self, layer: &Layer) -> Result<LayerImage> {
        match File::open(&layer.path) {
            Ok(file) => Ok(LayerImage::Whole(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let diff_id = layer.diff_id;
                let list = match self.list(&diff_id)? {
                    None if self.is_lazy(layer) => return Err(Error::Lazy { diff_id }),
                    list => list.ok_or(error).context("open", &layer.path)?,
                };
                let image = self.packed_image(list);
                image.map_err(|error| self.chunk_error(&layer.diff_id, error))
            }
            Err(error) => Err(error).context("open", &layer.path),
        }
    }

    /// Returns whether a layer is packed, so that its image's file is missing.
    #[must_use]
    pub fn is_packed(&self, layer: &Layer) -> bool {
        let is_missing = layer.path.try_exists().is_ok_and(|is_there| !is_there);
        is_missing && !self.is_lazy(layer)
    }

    /// Notes that an image is used: it is then not packed as unused.
    pub fn note_use(&self, image: &Image) {
        last_use::note_use(&self.layout.image(&image.manifest_digest));
    }

    /// Makes files of an image's packed layers, so that machines and the kernel can use them.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if a chunk is; [`Error::Full`] and other errors of the disk.
    pub fn unpack(&self, image: &Image, progress: &dyn Progress) -> Result<()> {
        self.note_use(image);
        let packed = image.layers.iter().filter(|layer| self.is_packed(layer));
        let packed: Vec<_> = packed.collect();
        if packed.is_empty() {
            return Ok(());
        }
        progress.event(Event::Phase(Phase::Layers));
        progress.event(Event::Layers(&transfers(packed.iter().copied())));
        for layer in packed {
            let event = |state| {
                progress.event(Event::Layer {
                    diff_id: &layer.diff_id,
                    state,
                });
            };
            self.unpack_layer(layer, &mut |bytes| event(LayerState::Unpacked { bytes }))?;
            event(LayerState::Done);
        }
        progress.event(Event::Phase(Phase::Done));
        Ok(())
    }

    fn unpack_layer(&self, layer: &Layer, watch: &mut dyn FnMut(u64)) -> Result<()> {
        let _shared = self.shared()?;
        let _lock = Lock::wait(&self.layout.layer_lock(&layer.diff_id), Mode::Exclusive)?;
        // Another process may have made it meanwhile.
        if !self.is_packed(layer) {
            return Ok(());
        }
        let list = self.list(&layer.diff_id)?;
        let list = list.ok_or(Error::NoLayer {
            diff_id: layer.diff_id,
        })?;
        let scratch = Scratch::new(&self.layout.tmp())?;
        let file = scratch.create(IMAGE)?;
        let unreadable = |error| self.chunk_error(&layer.diff_id, error);
        let LayerImage::Packed(image) = self.packed_image(list).map_err(unreadable)? else {
            return Ok(());
        };
        write_out(&image, &file, scratch.directory(), watch)?.map_err(unreadable)?;
        pad_and_sync(&file, layer.blocks, &scratch)?;
        drop(file);
        // As when it was published first. Its record may have the digest, which is that of the same bytes.
        self.sealed(&scratch.path(IMAGE));
        durable::publish(&scratch.path(IMAGE), &layer.path)
    }

    /// Returns whether a packed image is that of a layer: reads all of its chunks.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a chunk can't be read for a reason that is no damage.
    pub(super) fn is_of(&self, image: &LayerImage, record: &LayerRecord) -> Result<bool> {
        let length = record.blocks * BLOCK_SIZE;
        let checksum = image.size().and_then(|size| {
            let is_as_long = size == length;
            is_as_long.then(|| image.checksum(length)).transpose()
        });
        match checksum {
            Ok(checksum) => Ok(checksum == Some(record.checksum)),
            Err(error) if is_damage(&error) => Ok(false),
            Err(error) => Err(self.chunk_error(&record.diff_id, error)),
        }
    }

    /// Returns the store's error for one of reading a packed layer's chunks.
    pub(super) fn chunk_error(&self, diff_id: &Digest, error: io::Error) -> Error {
        unreadable(error, &self.layout.list(diff_id))
    }

    /// Returns what a packed layer is made of; `None` if it has no list.
    pub(super) fn list(&self, diff_id: &Digest) -> Result<Option<List>> {
        read_list(&self.layout.list(diff_id))
    }

    /// Opens the packs of a list.
    pub(super) fn packed_image(&self, list: List) -> io::Result<LayerImage> {
        let open = |pack: &Digest| open_pack(&self.layout.pack(pack));
        let image = micabox_pack::Image::new(list, open)?;
        Ok(LayerImage::Packed(Box::new(image)))
    }

    /// Returns whether a layer has a list of an image of so many blocks, and the packs that it names are there.
    pub(super) fn has_packed(&self, diff_id: &Digest, blocks: u64) -> bool {
        let Ok(Some(list)) = self.list(diff_id) else {
            return false;
        };
        list.size() == blocks.saturating_mul(BLOCK_SIZE) && self.has_packs(&list)
    }

    /// Returns whether the packs that a list names are there, and as long as it says.
    pub(super) fn has_packs(&self, list: &List) -> bool {
        let size = |pack: &Digest| {
            std::fs::metadata(self.layout.pack(pack))
                .ok()
                .map(|m| m.len())
        };
        let sizes: Vec<_> = list.packs().iter().map(size).collect();
        list.frames().iter().all(|frame| {
            let size = sizes.get(frame.pack as usize).copied().flatten();
            size.is_some_and(|size| size >= frame.offset + u64::from(frame.packed))
        })
    }
}

/// Reads the list in a file; `None` if there is no such file.
pub(super) fn read_list(path: &Path) -> Result<Option<List>> {
    let Some(bytes) = durable::read(path)? else {
        return Ok(None);
    };
    let list = List::parse(&bytes).map_err(|error| Error::Damaged {
        path: path.to_owned(),
        problem: error.to_string(),
    })?;
    Ok(Some(list))
}

/// Writes an image's bytes to a file that is empty, and leaves zeros out. Fails for the file in `directory`; the inner
/// error is one of reading a chunk.
pub(super) fn write_out(
    image: &micabox_pack::Image,
    file: &File,
    directory: &Path,
    watch: &mut dyn FnMut(u64),
) -> Result<io::Result<()>> {
    let mut at = 0;
    for (number, chunk) in image.list().chunks().iter().enumerate() {
        match image.with_chunk(number, |bytes| file.write_all_at(bytes, at)) {
            Ok(Some(written)) => written.context("write the image in", directory)?,
            Ok(None) => {}
            Err(error) => return Ok(Err(error)),
        }
        at += u64::from(chunk.length);
        watch(at);
    }
    Ok(Ok(()))
}

/// Returns the store's error for one of reading the chunks of the list at `path`.
pub(super) fn unreadable(error: io::Error, path: &Path) -> Error {
    if is_damage(&error) {
        return Error::Damaged {
            path: path.to_owned(),
            problem: error.to_string(),
        };
    }
    explain(error, "read the chunks of", path)
}

/// Returns whether an error of reading chunks is due to what is in packs and lists, or missing there.
pub(super) fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    matches!(error.kind(), InvalidData | NotFound | UnexpectedEof)
}

/// Returns layers' images as progress has them.
pub(super) fn transfers<'a>(layers: impl Iterator<Item = &'a Layer>) -> Vec<progress::Layer> {
    let transfer = |layer: &Layer| progress::Layer {
        diff_id: layer.diff_id,
        blob: Descriptor {
            media_type: names::MEDIA_TYPE.to_owned(),
            digest: layer.diff_id,
            size: layer.image_size(),
        },
    };
    layers.map(transfer).collect()
}

/// Opens a pack.
pub(super) fn open_pack(path: &Path) -> io::Result<File> {
    File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let problem = format!("{} is missing", path.display());
            io::Error::new(io::ErrorKind::NotFound, problem)
        }
        _ => error,
    })
}
