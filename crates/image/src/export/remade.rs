//! Packed EROFS images that are not kept: each chunk is compressed again when it is read.
//!
//! A chunk is a frame of its own, so what is at an offset of the blob takes one chunk of the image to tell. Only the
//! blob's end is in a file: the hash tree, which takes all of the image to make, and the chunk index.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use micabox_chunk::{ChunkError, FRAME_HEADER, Index, compress};
use micabox_erofs::ReadAt;

use super::erofs::{ErofsEntry, Source, read_error, write};
use super::pack::{BUFFER, PackError, write_error};
use crate::Digest;
use crate::store::{self, Image, Layer, LayerImage, Store};

/// A packed EROFS image, as [`pack_device`](super::pack_device) and [`pack_fsmeta`](super::pack_fsmeta) make them.
#[derive(Debug)]
pub struct RemadeErofs {
    entry: ErofsEntry,
    of: Of,
    index: Index,
    /// Where the end that is kept begins, in the blob.
    end_at: u64,
    end: File,
}

/// The image that it is made of.
#[derive(Debug)]
enum Of {
    Layer(Box<Layer>),
    Fsmeta(PathBuf),
}

/// A blob that is being read.
#[derive(Debug)]
pub struct RemadeReader {
    blob: Arc<RemadeErofs>,
    image: LayerImage,
}

/// Learns the blob of a layer as a device. `watch` is called with the number of bytes of the image that are read, and
/// returns whether to continue.
///
/// # Errors
///
/// Those of [`pack_device`](super::pack_device).
pub fn remade_device(
    store: &Store,
    layer: &Layer,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<RemadeErofs, PackError> {
    let of = Of::Layer(Box::new(layer.clone()));
    remade(store, Source::device(store, layer)?, of, watch)
}

/// Learns the blob of an image's merged metadata, as [`remade_device`] does that of a layer.
///
/// # Errors
///
/// Those of [`remade_device`].
pub fn remade_fsmeta(
    store: &Store,
    image: &Image,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<RemadeErofs, PackError> {
    let of = Of::Fsmeta(image.fsmeta.clone());
    remade(store, Source::fsmeta(store, image)?, of, watch)
}

fn remade(
    store: &Store,
    source: Source<'_>,
    of: Of,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<RemadeErofs, PackError> {
    let scratch = store.scratch()?;
    let path = scratch.path("end");
    let failed = |error| write_error(&path, error);
    let keeps = Rc::new(Cell::new(false));
    // The file exists as long as it is open.
    let out = End {
        file: BufWriter::with_capacity(BUFFER, scratch.create("end")?),
        keeps: Rc::clone(&keeps),
        begin: 0,
    };
    let (out, entry, index) = write(source, out, &path, &|| keeps.set(true), watch)?;
    let end_at = out.begin;
    let end = out
        .file
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    let payload = index.start + FRAME_HEADER;
    let mut bytes = vec![0; index.end.saturating_sub(payload) as usize];
    ReadAt::read_exact_at(&end, &mut bytes, payload.saturating_sub(end_at)).map_err(failed)?;
    let index =
        Index::parse(&bytes, index.start).map_err(|error| failed(io::Error::other(error)))?;
    Ok(RemadeErofs {
        entry,
        of,
        index,
        end_at,
        end,
    })
}

/// Keeps the end of what is written.
struct End {
    file: BufWriter<File>,
    /// Whether what comes is kept.
    keeps: Rc<Cell<bool>>,
    /// Bytes before what is kept.
    begin: u64,
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.keeps.get() {
            return self.file.write(bytes);
        }
        self.begin += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl RemadeErofs {
    /// Returns the blob's descriptor in a manifest.
    #[must_use]
    pub fn entry(&self) -> &ErofsEntry {
        &self.entry
    }

    /// Returns a reader of the blob. The image may be removed afterwards.
    ///
    /// # Errors
    ///
    /// [`store::Error`]: the image can't be opened any more.
    pub fn reader(self: &Arc<Self>, store: &Store) -> Result<RemadeReader, store::Error> {
        let image = match &self.of {
            Of::Layer(layer) => store.open_layer(layer)?,
            Of::Fsmeta(path) => {
                let file = File::open(path);
                LayerImage::Whole(file.map_err(|error| read_error(path, error))?)
            }
        };
        let blob = Arc::clone(self);
        Ok(RemadeReader { blob, image })
    }
}

impl RemadeReader {
    /// Returns the blob's digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.blob.entry.blob.digest
    }

    /// Returns the blob's length in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.blob.entry.blob.size
    }

    /// Returns bytes of the blob from offset `at` on, as many as are made at once, and no more than `most`. None at the
    /// blob's end.
    ///
    /// # Errors
    ///
    /// Those of reading the image; that it is another one now.
    pub fn read(&self, at: u64, most: usize) -> io::Result<Vec<u8>> {
        let blob = &*self.blob;
        if at >= blob.end_at {
            let left = self.size().saturating_sub(at).min(most as u64);
            let mut bytes = vec![0; left as usize];
            ReadAt::read_exact_at(&blob.end, &mut bytes, at - blob.end_at)?;
            return Ok(bytes);
        }
        let damaged =
            |error: ChunkError| io::Error::other(format!("the image is damaged: {error}"));
        let number = blob.index.find_in_blob(at).unwrap_or(usize::MAX);
        let contents = blob.index.contents(number);
        let range = blob.index.range(number).zip(contents);
        let (range, contents) = range.ok_or_else(|| damaged(ChunkError::Number(number)))?;
        let mut bytes = vec![0; (contents.end - contents.start) as usize];
        self.image.read_exact_at(&mut bytes, contents.start)?;
        let mut frame = compress(&bytes)?;
        blob.index.verify(number, &frame).map_err(damaged)?;
        frame.drain(..(at - range.start) as usize);
        frame.truncate(most);
        Ok(frame)
    }
}
