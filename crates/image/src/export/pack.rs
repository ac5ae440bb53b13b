//! Makes a layer's blob.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use micabox_ground::piece;
use zstd::stream::write::Encoder as ZstdEncoder;

use super::Compression;
use crate::Descriptor;
use crate::store::{self, Layer, LayerArchive, Store};
use micabox_oci::HashingWriter;

pub(super) const BUFFER: usize = 256 << 10;
/// zstd's default.
const ZSTD_LEVEL: i32 = 3;

/// A finished blob.
#[derive(Debug)]
pub struct Packed {
    /// Its bytes, from the beginning.
    pub file: File,
    /// Its descriptor.
    pub blob: Descriptor,
}

/// Why a blob could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The store, or its disk, failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// `watch` returned false.
    #[error("stopped")]
    Stopped,
}

/// Packs a layer of the store into an unnamed file. `watch` is called with the number of bytes of
/// the archive that are packed, and returns whether to continue.
///
/// # Errors
///
/// [`PackError::Stopped`] if `watch` returned false.
pub fn pack_layer(
    store: &Store,
    layer: &Layer,
    compression: Compression,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<Packed, PackError> {
    let mut archive = store.archive(layer)?;
    // The file exists as long as it is open.
    let scratch = store.scratch()?;
    let file = scratch.create("blob")?;
    pack(
        &mut archive,
        compression,
        file,
        &scratch.path("blob"),
        watch,
    )
}

/// Packs `archive` into `file`, which is empty and at `path`. `watch` is called with the number of
/// bytes of the archive that are packed, and returns whether to continue.
///
/// The packed archive's digest was checked: it is the layer's diff ID.
pub(crate) fn pack(
    archive: &mut LayerArchive,
    compression: Compression,
    file: File,
    path: &Path,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<Packed, PackError> {
    let out = BufWriter::with_capacity(BUFFER, HashingWriter::new(file));
    let failed = |error| write_error(path, error);
    let out = match compression {
        Compression::Gzip => {
            // Neither a name nor a time: the same layer always gives the same blob.
            let mut out = GzEncoder::new(out, flate2::Compression::default());
            copy(archive, &mut out, path, watch)?;
            out.finish().map_err(failed)?
        }
        Compression::Zstd => {
            let mut out = ZstdEncoder::new(out, ZSTD_LEVEL).map_err(failed)?;
            copy(archive, &mut out, path, watch)?;
            out.finish().map_err(failed)?
        }
        Compression::None => {
            let mut out = out;
            copy(archive, &mut out, path, watch)?;
            out
        }
    };
    let out = out
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    let (mut file, digest, size) = out.finish();
    file.rewind().map_err(failed)?;
    let blob = Descriptor {
        media_type: compression.media_type().to_owned(),
        digest,
        size,
    };
    Ok(Packed { file, blob })
}

fn copy(
    archive: &mut LayerArchive,
    out: &mut dyn Write,
    path: &Path,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<(), PackError> {
    let mut buffer = vec![0; BUFFER];
    let mut done = 0;
    loop {
        let bytes = match piece(archive, &mut buffer) {
            Ok(None) => return Ok(()),
            Ok(Some(bytes)) => bytes,
            Err(error) => return Err(archive.explain(error).into()),
        };
        out.write_all(bytes)
            .map_err(|error| write_error(path, error))?;
        done += bytes.len() as u64;
        if !watch(done) {
            return Err(PackError::Stopped);
        }
    }
}

pub(super) fn write_error(path: &Path, source: io::Error) -> store::Error {
    let path = PathBuf::from(path);
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => store::Error::Full { path },
        _ => store::Error::Io {
            action: "write",
            path,
            source,
        },
    }
}
