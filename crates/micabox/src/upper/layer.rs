//! A disk's changes as a layer of an OCI image.
//!
//! overlayfs says what is gone by devices and attributes, an archive by names.

use std::io::Write;

use micabox_ext4::archive::{Kind, Member, Writer};
use micabox_ext4::export::{ExportError, Exported, Exporter};
use micabox_ext4::{FileKind, Owner, Timestamp};

use super::walk::{Disk, Step, Walk, WalkError, is_whiteout};
use crate::base::Lower;

/// What the name of something that is gone begins with.
const WHITEOUT: &[u8] = b".wh.";

/// A file that hides everything that the layers below have in its directory.
const OPAQUE_FILE: &[u8] = b".wh..wh..opq";

/// overlayfs's own attributes.
pub(crate) const OVERLAY: &[u8] = b"trusted.overlay.";

/// Why there is no layer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayerError {
    #[error(transparent)]
    Walk(#[from] WalkError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(
        "{}: cannot be in a layer: `.wh.` marks what is gone there",
        printable(_0)
    )]
    Marker(Vec<u8>),
    #[error("{}: a directory with several names", printable(_0))]
    Again(Vec<u8>),
}

/// A path as errors have it.
fn printable(path: &[u8]) -> String {
    format!("/{}", path.escape_ascii())
}

/// Writes the changes on `disk` as an uncompressed archive. `lower` says what a socket hides,
/// which no archive can hold.
pub(crate) fn write_layer(
    disk: Disk,
    lower: Lower,
    output: impl Write,
) -> Result<Exported, LayerError> {
    let mut archive = Exporter::new(&disk, output);
    if let Some((mut walk, root)) = Walk::start(disk, lower)? {
        add(&mut archive, &mut walk, &root)?;
        while let Some(step) = walk.next()? {
            add(&mut archive, &mut walk, &step)?;
        }
    }
    Ok(archive.finish()?)
}

fn add<W: Write>(
    archive: &mut Exporter<W>,
    walk: &mut Walk,
    step: &Step,
) -> Result<(), LayerError> {
    // Only below, and hidden: the directory says so.
    let Some(stat) = &step.upper else {
        return Ok(());
    };
    let (name, _) = walk.name();
    let directory = walk.path().len() - name.len();
    let mark = |archive: &mut Exporter<W>, directory: &[u8], name: &[&[u8]]| {
        let path = [directory, &name.concat()].concat();
        marker(archive.archive(), &path, stat.mtime)
    };
    if is_whiteout(stat) {
        let directory = walk.path().get(..directory).unwrap_or_default();
        return mark(archive, directory, &[WHITEOUT, name]);
    }
    if name.starts_with(WHITEOUT) {
        return Err(LayerError::Marker(walk.path().to_vec()));
    }
    if step.again {
        return Err(LayerError::Again(walk.path().to_vec()));
    }
    if stat.kind() == Some(FileKind::Socket) && step.below.is_some() && !step.hidden {
        let directory = walk.path().get(..directory).unwrap_or_default();
        mark(archive, directory, &[WHITEOUT, name])?;
    }
    let path = walk.path().to_vec();
    archive.add(&mut walk.disk, &path, stat, renamed)?;
    if step.opaque {
        let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
        mark(archive, &path, &[slash, OPAQUE_FILE])?;
    }
    Ok(())
}

/// An empty file that only its name matters of.
fn marker<W: Write>(
    archive: &mut Writer<W>,
    path: &[u8],
    mtime: Timestamp,
) -> Result<(), LayerError> {
    let member = Member {
        path,
        kind: Kind::File {
            size: 0,
            segments: None,
        },
        owner: Owner::root(0o600),
        mtime,
        xattrs: &[],
    };
    archive
        .add(&member)
        .map_err(|error| ExportError::from(error).into())
}

/// Leaves out what overlayfs noted for itself, and gives back what it keeps for an overlay
/// inside the sandbox under another name.
fn renamed(name: &[u8]) -> Option<Vec<u8>> {
    let own = name.strip_prefix(OVERLAY)?;
    let inner = own.strip_prefix(b"overlay.");
    Some(inner.map_or(Vec::new(), |inner| [OVERLAY, inner].concat()))
}
