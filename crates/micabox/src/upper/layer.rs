//! A disk's changes as a layer of an OCI image.
//!
//! overlayfs says what is gone by devices and attributes, an archive by names. So the disk
//! is first made to say it by names, in memory, and then written as any other tree.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use micabox_ext4::export::{ExportError, export};
use micabox_ext4::{Ext4, FileKind, Ino, Owner, SetAttributes, SetXattr};

use super::changes::{OPAQUE, is_opaque, is_whiteout};
use super::scratch::Scratch;
use super::{ROOT, open};
use crate::Error;

/// What the name of something that is gone begins with.
const WHITEOUT: &[u8] = b".wh.";

/// A file that hides everything that the layers below have in its directory.
const OPAQUE_FILE: &[u8] = b".wh..wh..opq";

/// overlayfs's own attributes.
pub(crate) const OVERLAY: &[u8] = b"trusted.overlay.";

/// Writes the changes on `disk` as an uncompressed archive.
pub(crate) fn write_layer(disk: &Path, output: &mut dyn Write) -> Result<(), Error> {
    let failed = |problem: String| Error::Disk {
        what: "making a layer of",
        path: disk.to_owned(),
        problem,
    };
    let mut upper = open(disk)?;
    let root = upper
        .resolve(ROOT)
        .map_err(|error| failed(error.to_string()))?;
    translate(&mut upper, root).map_err(|error| failed(error.to_string()))?;
    match export(&mut upper, root, output) {
        Ok(_) => Ok(()),
        Err(ExportError::Output(source)) => Err(Error::System {
            what: "writing the layer",
            source,
        }),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Puts an archive's words in place of overlayfs's, in everything below `root`.
fn translate(upper: &mut Ext4<Scratch>, root: Ino) -> Result<(), micabox_ext4::Error> {
    let mut directories = vec![root];
    // A file may have many names, and a damaged disk directories in a circle.
    let mut seen = HashSet::from([root]);
    forget_overlay(upper, root)?;
    while let Some(directory) = directories.pop() {
        let before = upper.stat(directory)?;
        let mut marks: Vec<Vec<u8>> = Vec::new();
        if is_opaque(upper, directory)? {
            upper.remove_xattr(directory, OPAQUE)?;
            marks.push(OPAQUE_FILE.to_vec());
        }
        for entry in upper.read_dir(directory)? {
            let stat = upper.stat(entry.ino)?;
            if is_whiteout(&stat) {
                // Many of them may be one inode.
                upper.unlink(directory, &entry.name)?;
                marks.push([WHITEOUT, &*entry.name].concat());
            } else if seen.insert(entry.ino) {
                if stat.kind() == Some(FileKind::Directory) {
                    directories.push(entry.ino);
                }
                forget_overlay(upper, entry.ino)?;
            }
        }
        for mark in &marks {
            upper.create(directory, mark, Owner::root(0o600))?;
        }
        if !marks.is_empty() {
            let times = SetAttributes {
                mtime: Some(before.mtime),
                ..SetAttributes::default()
            };
            upper.set_attributes(directory, &times)?;
        }
    }
    Ok(())
}

/// Takes away what overlayfs noted for itself, and gives back what it keeps for an overlay
/// inside the sandbox under another name. The mark of opacity stays.
fn forget_overlay(upper: &mut Ext4<Scratch>, ino: Ino) -> Result<(), micabox_ext4::Error> {
    for name in upper.xattr_names(ino)? {
        let Some(own) = name.strip_prefix(OVERLAY) else {
            continue;
        };
        if *name == *OPAQUE {
            continue;
        }
        if let Some(inner) = own.strip_prefix(b"overlay.") {
            let value = upper.xattr(ino, &name)?;
            upper.remove_xattr(ino, &name)?;
            let inner = [OVERLAY, inner].concat();
            upper.set_xattr(ino, &inner, &value, SetXattr::Any)?;
        } else {
            upper.remove_xattr(ino, &name)?;
        }
    }
    Ok(())
}
