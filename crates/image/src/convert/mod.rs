//! Converts a layer's blob to the layer's filesystem image, in one pass.
//!
//! blob → SHA-256 → inflate → SHA-256 → tar entries → EROFS: the steps run in parallel, memory
//! grows with the number of entries and not with their size, and nothing is published before both
//! digests are verified. No entry is ever unpacked on the host.

pub(crate) mod decompress;
mod device;
mod error;
pub(crate) mod fuzzing;
mod jail;
mod lazy;
mod media_type;
mod memory;
mod native;
mod path;
mod pipeline;
mod source;
mod tree;
mod xattr;

pub use error::{Error, Reason};
pub use jail::{Place, WORKER};
pub use lazy::{CHECKER, metadata_chunks};
pub(crate) use lazy::{Known, check as check_metadata};
pub(crate) use media_type::LayerKind;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::Limits;
use crate::identity;
use crate::recipe::{self, Recorder};
use crate::store::{
    self, Checksum, ChecksummedFile, Claim, Layer, LayerClaim, LayerRecord, RecipeRecord, Store,
};
use micabox_oci::{Descriptor, Digest};
use micabox_tar::{self as tar, printable};
use source::Expected;
use tree::{Finished, LayerTree};

/// The expected digests of a layer.
#[derive(Debug, Clone)]
pub struct Expect {
    /// The blob as the manifest describes it. `None` without a manifest, as in old `docker save`
    /// archives: the diff ID is sufficient.
    pub blob: Option<Descriptor>,
    /// Digest of the uncompressed layer, from the image's config.
    pub diff_id: Digest,
    /// Of an EROFS image that is a device: digest of the archive that it was converted from, as its manifest says.
    pub archive: Option<Digest>,
}

impl Expect {
    fn digest(&self) -> Option<Digest> {
        self.blob.as_ref().map(|blob| blob.digest)
    }

    fn media_type(&self) -> Option<&str> {
        self.blob.as_ref().map(|blob| &*blob.media_type)
    }

    fn kind(&self) -> Result<LayerKind, Reason> {
        let kind = LayerKind::of(self.media_type()).map_err(|problem| Reason::MediaType {
            media_type: printable(self.media_type().unwrap_or_default().as_bytes()),
            problem,
        })?;
        Ok(match self.archive {
            Some(archive) if kind == LayerKind::Erofs => LayerKind::Device { archive },
            _ => kind,
        })
    }

    /// Returns the digest that identifies the layer in messages.
    fn layer(&self) -> Digest {
        self.digest().unwrap_or(self.diff_id)
    }

    pub(crate) fn error(&self, reason: impl Into<Reason>) -> Error {
        Error {
            layer: self.layer(),
            reason: reason.into(),
        }
    }
}

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
    if is_archive != (kind == LayerKind::Archive) || layer.record.archive != kind.archive() {
        return Err(expect.error(Reason::Kind {
            media_type: printable(expect.media_type().unwrap_or_default().as_bytes()),
            diff_id: layer.diff_id,
        }));
    }
    Ok(())
}

/// Checks the size and the digest of a blob whose layer the store has.
pub(crate) fn check_blob(source: impl Read, expect: &Expect) -> Result<(), Error> {
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
    };
    let recipe = record.recipe.is_some().then_some(second);
    Ok(claim.publish(scratch, image, recipe, expect.digest(), record)?)
}

/// A layer whose image is written, but not published.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Converted {
    /// Length of the image in blocks.
    pub blocks: u64,
    /// Checksum of the image.
    checksum: Checksum,
    pub inodes: u64,
    pub uncompressed_size: u64,
    pub entries: u64,
    /// Attributes and ACLs that were left out.
    pub dropped_xattrs: u64,
    /// How to rebuild the archive, if the blob was one.
    recipe: Option<RecipeRecord>,
}

/// Writes a layer's image to `out`, and its recipe to `second`; a foreign EROFS image is first
/// unpacked there.
fn make(
    source: impl BufRead + Send,
    expected: Expected<'_>,
    kind: LayerKind,
    out: ChecksummedFile,
    mut second: File,
    limits: &Limits,
) -> Result<Converted, Reason> {
    let diff_id = expected.what.diff_id;
    let made = match kind {
        LayerKind::Archive => {
            let (made, _) = pipeline::run(source, expected, limits, |bytes| {
                from_archive(bytes, out, second, expected, limits)
            })?;
            made
        }
        LayerKind::Erofs => {
            let (size, blob_size) = pipeline::run(source, expected, limits, |bytes| {
                native::spool(bytes, &mut second)
            })?;
            let uuid = identity::layer_uuid(&diff_id);
            let (finished, entries) = native::copy(second, blob_size, out, uuid, limits)?;
            Made {
                finished,
                uncompressed_size: size,
                entries,
                recipe: None,
            }
        }
        LayerKind::Device { archive } => {
            let ((written, size), blob_size) = pipeline::run(source, expected, limits, |bytes| {
                device::write(bytes, out, limits)
            })?;
            let uuid = identity::layer_uuid(&archive);
            return device::check(written, size, blob_size, uuid, limits);
        }
    };
    let Finished {
        out,
        summary,
        dropped_xattrs,
    } = made.finished;
    let (_, checksum) = out.finish().map_err(Reason::Write)?;
    Ok(Converted {
        blocks: summary.blocks.into(),
        checksum,
        inodes: summary.inodes,
        uncompressed_size: made.uncompressed_size,
        entries: made.entries,
        dropped_xattrs,
        recipe: made.recipe.map(|recipe| RecipeRecord {
            size: recipe.size,
            digest: recipe.digest,
        }),
    })
}

/// A layer's image before it is finished.
struct Made {
    finished: Finished<ChecksummedFile>,
    uncompressed_size: u64,
    entries: u64,
    /// How to rebuild the archive, if the blob was one.
    recipe: Option<recipe::Written>,
}

fn from_archive(
    bytes: &mut dyn BufRead,
    out: ChecksummedFile,
    recipe: File,
    expected: Expected<'_>,
    limits: &Limits,
) -> Result<Made, Reason> {
    let uuid = identity::layer_uuid(&expected.what.diff_id);
    let mut tree = LayerTree::new(out, uuid, expected.blob_size, limits)?;
    let recorder = Recorder::new(bytes, recipe).map_err(Reason::Write)?;
    let mut archive = tar::Reader::new(recorder, limits.member());
    loop {
        match archive.next_member() {
            Ok(Some(member)) => {
                archive.input().begin_body();
                let records = archive.take_records();
                let stored = tree.add(&member, &records, &mut archive.body())?;
                let (size, segments) = match &member.kind {
                    tar::Kind::File { size, segments } => (*size, segments.as_deref()),
                    _ => (0, None),
                };
                archive
                    .input()
                    .end_body(stored, size, segments)
                    .map_err(Reason::Write)?;
            }
            Ok(None) => break,
            Err(error) => return Err(archive_reason(&archive, error, limits)),
        }
    }
    // Bytes after the archive's end are not part of the tree, but of the diff ID.
    let mut uncompressed_size = archive.offset();
    let mut bytes = archive.into_inner();
    loop {
        let count = bytes.fill_buf().map_err(Reason::Source)?.len();
        if count == 0 {
            break;
        }
        bytes.consume(count);
        uncompressed_size += count as u64;
    }
    let entries = tree.count();
    let recipe = bytes.finish().map_err(Reason::Write)?;
    Ok(Made {
        finished: tree.finish()?,
        uncompressed_size,
        entries,
        recipe: Some(recipe),
    })
}

fn archive_reason<R: BufRead>(
    archive: &tar::Reader<R>,
    error: tar::Error,
    limits: &Limits,
) -> Reason {
    let entry = Some(archive.name())
        .filter(|name| !name.is_empty())
        .map(printable);
    match error {
        tar::Error::Limit(limit) => {
            let (setting, limit) = match limit {
                tar::Limit::HeaderSize => ("header-size", limits.header_size),
                tar::Limit::PathLength => ("path-length", limits.path_length),
                _ => ("sparse-segments", limits.sparse_segments),
            };
            Reason::Limit {
                setting,
                limit,
                entry,
            }
        }
        tar::Error::Type(_) => Reason::Entry {
            entry: entry.unwrap_or_default(),
            problem: error.to_string(),
        },
        error => Reason::Archive {
            offset: archive.offset(),
            entry,
            problem: error.to_string(),
        },
    }
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
