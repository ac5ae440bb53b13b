//! Doors for `fuzz/` to what turns blobs into layers, without a store and in this process.

use std::fs::File;
use std::io::{BufReader, Read};

use super::error::Reason;
use super::media_type::LayerKind;
use super::source::Expected;
use super::{Expect, make, pipeline};
use crate::Limits;
use crate::store::ChecksummedFile;
use micabox_oci::Digest;

/// Takes a blob's compression off.
///
/// # Errors
/// What an import would say of the blob.
pub fn inflate(blob: impl Read + Send, limits: &Limits) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    let blob = BufReader::with_capacity(pipeline::READ, blob);
    let expect = expect(Digest::of(b"another blob's"));
    let expected = Expected::all(&expect);
    let read = pipeline::run(blob, expected, limits, |bytes| {
        bytes.read_to_end(&mut all).map_err(Reason::Source)
    });
    match read {
        // The last thing that is looked at: all of the blob is there.
        Err(Reason::DiffId { .. }) | Ok(_) => Ok(all),
        Err(reason) => Err(reason.to_string()),
    }
}

/// Makes a layer's image and recipe of an uncompressed archive. Both files must be empty.
///
/// # Errors
/// What an import would say of the archive.
pub fn archive(bytes: &[u8], limits: &Limits, image: File, recipe: File) -> Result<(), String> {
    layer(bytes, LayerKind::Archive, limits, image, recipe)
}

/// Makes a layer's image of an EROFS image from elsewhere. Both files must be empty.
///
/// # Errors
/// What an import would say of the image.
pub fn erofs(bytes: &[u8], limits: &Limits, spool: File, image: File) -> Result<(), String> {
    layer(bytes, LayerKind::Erofs, limits, image, spool)
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
    }
}
