//! Writes a layer's image from its blob.

use std::fs::File;
use std::io::BufRead;

use super::converted::Converted;
use super::error::Reason;
use super::media_type::LayerKind;
use super::source::Expected;
use super::tree::{Finished, LayerTree};
use super::{device, native, pipeline};
use crate::Limits;
use crate::identity;
use crate::limits::Limit;
use crate::recipe::{self, Recorder};
use crate::store::{ChecksummedFile, RecipeRecord};
use micabox_tar::{self as tar, printable};

/// Writes a layer's image to `out`, and its recipe to `second`; a foreign EROFS image is first
/// unpacked there.
pub(super) fn make(
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
                tar::Limit::HeaderSize => (Limit::HeaderSize, limits.header_size),
                tar::Limit::PathLength => (Limit::PathLength, limits.path_length),
                _ => (Limit::SparseSegments, limits.sparse_segments),
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
