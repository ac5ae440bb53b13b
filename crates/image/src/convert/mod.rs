//! Converts a layer's blob to the layer's filesystem image, in one pass.
//!
//! blob → SHA-256 → inflate → SHA-256 → tar entries → EROFS: the steps run in parallel, memory
//! grows with the number of entries and not with their size, and nothing is published before both
//! digests are verified. No entry is ever unpacked on the host.

mod converted;
pub(crate) mod decompress;
mod device;
mod error;
mod expect;
pub(crate) mod fuzzing;
mod image;
mod inflate;
mod jail;
mod lazy;
mod lz4;
mod media_type;
mod memory;
mod native;
mod path;
mod pipeline;
mod source;
mod tree;
mod xattr;

pub(crate) use converted::Converted;
pub use decompress::ForeignCompression;
pub use error::{Error, Reason};
pub use expect::Expect;
pub use jail::{Place, WORKER};
pub use lazy::{CHECKER, metadata_chunks};
pub(crate) use lazy::{Known, check as check_metadata};
pub(crate) use media_type::LayerKind;

use std::fs::File;
use std::io::{BufReader, Read};

use tracing::debug;

use crate::Limits;
use crate::identity;
use crate::store::{self, ChecksummedFile, Claim, Layer, LayerClaim, LayerRecord, Store};
use image::make;
use micabox_tar::printable;
use source::Expected;

/// Converts a layer's blob in this process, unless the store has the layer: then `source` isn't
/// read. If another process or thread is converting it, waits and uses its result. See
/// [`convert_layer_in`].
///
/// # Errors
///
/// [`Error`]; the store is unchanged.
pub fn convert_layer(
    store: &Store,
    source: impl Read + Send,
    expect: &Expect,
    limits: &Limits,
) -> Result<Layer, Error> {
    convert_layer_in(Place::Here, store, source, expect, limits)
}

/// Converts a layer's blob like [`convert_layer`], in the given place.
///
/// Blocks; async callers must use a thread for it. An error of `source` ends the conversion: this
/// is how to cancel it.
///
/// # Errors
///
/// [`Error`]; the store is unchanged.
pub fn convert_layer_in(
    place: Place,
    store: &Store,
    source: impl Read + Send,
    expect: &Expect,
    limits: &Limits,
) -> Result<Layer, Error> {
    match store
        .claim_layer(&expect.diff_id, expect.digest().as_ref())
        .map_err(|error| expect.error(error))?
    {
        Claim::Present(layer) => {
            check_kind(&layer, expect)?;
            Ok(layer)
        }
        Claim::Missing(claim) => convert_claimed(claim, source, expect, limits, place),
    }
}

/// Checks that a layer in the store is of the kind in the manifest.
///
/// An EROFS image begins with zeros, so it is also a valid archive: an empty one. One that mica has converted may also
/// be named as any tool's, whose tree is copied.
///
/// # Errors
///
/// [`Reason::Kind`], or the error of an unknown media type.
pub fn check_kind(layer: &Layer, expect: &Expect) -> Result<(), Error> {
    let kind = expect.kind().map_err(|r| expect.error(r))?;
    let is_archive = layer.record.recipe.is_some();
    let is_it = match kind {
        LayerKind::Archive => is_archive,
        // A device has stricter rules, so it is as good as a copy.
        LayerKind::Erofs => !is_archive,
        LayerKind::Device { archive } => layer.record.archive == Some(archive),
    };
    if !is_it {
        return Err(expect.error(Reason::Kind {
            media_type: printable(expect.media_type().unwrap_or_default().as_bytes()),
            diff_id: layer.diff_id,
        }));
    }
    Ok(())
}

/// Checks the size and the digest of a blob whose layer the store has, or that is no layer.
///
/// # Errors
///
/// [`Error`]: it is another blob, or can't be read.
pub fn check_blob(source: impl Read, expect: &Expect) -> Result<(), Error> {
    source::read(source, Expected::all(expect)).map_err(|reason| expect.error(reason))
}

/// Converts like [`convert_layer_in`], for a caller that called [`Store::claim_layer`] before it
/// opened the source. `expect.diff_id` must be the claim's.
///
/// # Errors
///
/// [`Error`]; the store is unchanged.
pub fn convert_claimed(
    claim: LayerClaim,
    source: impl Read + Send,
    expect: &Expect,
    limits: &Limits,
    place: Place,
) -> Result<Layer, Error> {
    let layer = convert(&claim, source, expect, limits, place)
        .map_err(|reason| expect.error(full_disk(&claim, reason)))?;
    let (diff_id, blocks) = (&layer.diff_id, layer.blocks);
    debug!(%diff_id, blocks, "converted the layer");
    Ok(layer)
}

fn convert(
    claim: &LayerClaim,
    source: impl Read + Send,
    expect: &Expect,
    limits: &Limits,
    place: Place,
) -> Result<Layer, Reason> {
    let diff_id = *claim.diff_id();
    let expected = Expected::all(expect);
    let kind = expect.kind()?;
    let (scratch, image) = claim.start()?;
    let second = match kind {
        LayerKind::Archive => scratch.create(store::RECIPE)?,
        LayerKind::Erofs | LayerKind::Device { .. } => scratch.create("native.erofs")?,
    };
    let copy = |file: &File| file.try_clone().map_err(Reason::Write);
    let converted = match place {
        Place::Jail => jail::convert(source, expected, kind, &image, &second, limits)?,
        Place::Here => {
            let out = ChecksummedFile::new(copy(&image)?);
            let source = BufReader::with_capacity(pipeline::READ, source);
            make(source, expected, kind, out, copy(&second)?, limits)?
        }
    };
    if let Some(expected) = expect.checksum.filter(|said| *said != converted.checksum) {
        let actual = converted.checksum;
        return Err(Reason::Checksum { expected, actual });
    }
    let record = LayerRecord {
        format: identity::FORMAT,
        diff_id,
        blocks: converted.blocks,
        checksum: converted.checksum,
        inodes: converted.inodes,
        uncompressed_size: converted.uncompressed_size,
        entries: converted.entries,
        dropped_xattrs: converted.dropped_xattrs,
        recipe: converted.recipe,
        archive: kind.archive(),
        verity: None,
    };
    let recipe = record.recipe.is_some().then_some(second);
    Ok(claim.publish(scratch, image, recipe, expect.digest(), record)?)
}

/// Turns a full disk into an error of the store, wherever it occurred.
fn full_disk(claim: &LayerClaim, reason: Reason) -> Reason {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    match reason {
        Reason::Write(error) if matches!(error.kind(), StorageFull | QuotaExceeded) => {
            Reason::Store(store::Error::Full {
                path: claim.store().root().to_owned(),
            })
        }
        reason => reason,
    }
}
