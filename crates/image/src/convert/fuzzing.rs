//! Entry points for `fuzz/` to the conversion of blobs, without a store and in this process.

use std::fs::File;
use std::io::{BufReader, Read};

use super::error::Reason;
use super::expect::Expect;
use super::image::make;
use super::media_type::LayerKind;
use super::source::Expected;
use super::{device, pipeline};
use crate::Limits;
use crate::store::ChecksummedFile;
use micabox_oci::Digest;

/// Offset of the UUID in an image.
const UUID: usize = 1024 + 48;

/// Decompresses a layer's blob.
///
/// # Errors
/// The import's error for the blob.
pub fn inflate(blob: impl Read + Send, limits: &Limits) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    let blob = BufReader::with_capacity(pipeline::READ, blob);
    let expect = expect(Digest::of(b"another blob's"));
    let expected = Expected::all(&expect);
    let read = pipeline::run(blob, expected, limits, |bytes| {
        bytes.read_to_end(&mut all).map_err(Reason::Source)
    });
    match read {
        // The diff ID is checked last: the blob is complete.
        Err(Reason::DiffId { .. }) | Ok(_) => Ok(all),
        Err(reason) => Err(reason.to_string()),
    }
}

/// Converts an uncompressed archive to a layer's image and recipe. Both files must be empty.
///
/// # Errors
/// The import's error for the archive.
pub fn archive(bytes: &[u8], limits: &Limits, image: File, recipe: File) -> Result<(), String> {
    layer(bytes, LayerKind::Archive, limits, image, recipe)
}

/// Converts a foreign EROFS image to a layer's image. Both files must be empty.
///
/// # Errors
/// The import's error for the image.
pub fn erofs(bytes: &[u8], limits: &Limits, spool: File, image: File) -> Result<(), String> {
    layer(bytes, LayerKind::Erofs, limits, image, spool)
}

/// Takes over an EROFS image of our own, whatever its UUID. The file must be empty.
///
/// # Errors
/// The import's error for the image.
pub fn device(bytes: &[u8], limits: &Limits, image: File) -> Result<(), String> {
    let mut uuid = [0; 16];
    let own = bytes
        .get(UUID..UUID + uuid.len())
        .unwrap_or(&uuid)
        .to_owned();
    uuid.copy_from_slice(&own);
    let size = bytes.len() as u64;
    device::write(&mut &*bytes, ChecksummedFile::new(image), limits)
        .and_then(|(written, read)| device::check(written, read, size, uuid, limits))
        .map(drop)
        .map_err(|reason| reason.to_string())
}

fn layer(
    bytes: &[u8],
    kind: LayerKind,
    limits: &Limits,
    image: File,
    second: File,
) -> Result<(), String> {
    let expect = expect(Digest::of(bytes));
    let expected = Expected::all(&expect);
    let out = ChecksummedFile::new(image);
    make(bytes, expected, kind, out, second, limits)
        .map(drop)
        .map_err(|reason| reason.to_string())
}

fn expect(diff_id: Digest) -> Expect {
    Expect {
        blob: None,
        diff_id,
        archive: None,
        checksum: None,
    }
}
