//! Writes an upper layer as a layer of an OCI image.
//!
//! overlayfs marks deletions with devices and attributes, an archive with names.

use std::io::Write;

use crate::export::{ExportError, Exported, Exporter};
use micabox_ext4::{FileKind, Timestamp};
use micabox_tar::{Attributes, Kind, Member, Writer};

use crate::upper::Upper;
use crate::view::{Entry, View, ViewError};
use crate::walk::{Scope, Step, Walk};
use crate::words::{ESCAPED_PREFIX, archive as marks, is_marker, unescape_xattr_name};

/// Why a layer can't be written.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The layers can't be read.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The archive can't be written.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The name of the file at this path would be a whiteout in an archive.
    #[error(
        "{}: cannot be in a layer: `.wh.` marks what is gone there",
        printable(_0)
    )]
    Marker(Vec<u8>),
    /// The directory at this path has another name as well: the disk is damaged.
    #[error("{}: a directory with several names", printable(_0))]
    Again(Vec<u8>),
}

/// Formats a path for errors.
fn printable(path: &[u8]) -> String {
    format!("/{}", path.escape_ascii())
}

/// Writes the changes as an uncompressed archive. Sockets, which archives can't hold, are left
/// out; one that hides a file of the lower layer becomes a whiteout.
///
/// # Errors
/// [`LayerError`].
pub fn write_layer<U: Upper>(
    view: &mut View<U>,
    output: impl Write,
) -> Result<Exported, LayerError> {
    let mut archive = Exporter::new(&view.upper, output);
    let root = view.root()?;
    if let Entry::Upper(stat) = view.entry(&root)? {
        archive.add(&mut view.upper, b"", &stat, renamed)?;
        let mut walk = Walk::new(Scope::Changes, root, b"");
        while let Some(step) = walk.next(view)? {
            add(&mut archive, view, &walk, &step)?;
        }
    }
    Ok(archive.finish()?)
}

fn add<U: Upper, W: Write>(
    archive: &mut Exporter<W>,
    view: &mut View<U>,
    walk: &Walk,
    step: &Step,
) -> Result<(), LayerError> {
    let slot = &step.slot;
    // Only in the lower layer, and hidden: the directory is marked as opaque.
    let Some(stat) = &slot.upper else {
        return Ok(());
    };
    let path = walk.path();
    let (name, _) = walk.name();
    let directory = path.get(..path.len() - name.len()).unwrap_or_default();
    let whiteout = |archive: &mut Exporter<W>| {
        let path = [directory, marks::PREFIX, name].concat();
        marker(archive.archive(), &path, stat.mtime)
    };
    if slot.is_whiteout() {
        return whiteout(archive);
    }
    if name.starts_with(marks::PREFIX) {
        return Err(LayerError::Marker(path.to_vec()));
    }
    if step.again {
        return Err(LayerError::Again(path.to_vec()));
    }
    if stat.kind() == Some(FileKind::Socket) && slot.below.is_some() && !slot.hidden {
        whiteout(archive)?;
    }
    archive.add(&mut view.upper, path, stat, renamed)?;
    if slot.opaque {
        let path = [path, b"/", marks::OPAQUE].concat();
        marker(archive.archive(), &path, stat.mtime)?;
    }
    Ok(())
}

/// Adds an empty file that marks a deletion by its name.
fn marker<W: Write>(
    archive: &mut Writer<W>,
    path: &[u8],
    mtime: Timestamp,
) -> Result<(), LayerError> {
    let member = Member {
        path: path.to_vec(),
        kind: Kind::file(0),
        attributes: Attributes {
            mode: 0o600,
            mtime,
            ..Attributes::default()
        },
    };
    archive
        .add(&member)
        .map_err(|error| ExportError::from(error).into())
}

/// Removes overlayfs's own attributes, and restores the names of those that it escaped for an
/// overlay inside the sandbox.
fn renamed(name: &[u8]) -> Option<Vec<u8>> {
    if is_marker(name) {
        return Some(Vec::new());
    }
    name.starts_with(ESCAPED_PREFIX)
        .then(|| unescape_xattr_name(name).into())
}
