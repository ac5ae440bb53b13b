//! Names the markers that describe to overlayfs what a layer does to the layers below.
//!
//! Source of the rules: Linux, `Documentation/filesystems/overlayfs.rst`. All of the markers are
//! attributes in overlayfs's own namespace, which the overlay hides from its users; the merge
//! interprets and drops them.

use crate::Result;
use crate::Timestamp;
use crate::tree::{Inode, InodeId, Kind, Metadata, Tree};
use crate::xattr::Xattr;

/// Attributes with this prefix belong to overlayfs.
pub const PREFIX: &[u8] = b"trusted.overlay.";
/// Attributes with this prefix appear without the second `overlay.` (Linux 6.7 and newer): this
/// keeps an archive's own `trusted.overlay.*` intact in an overlay.
pub const ESCAPED_PREFIX: &[u8] = b"trusted.overlay.overlay.";
/// `y` on a directory: hides the contents of the directories below it.
pub const OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// On a regular file: the file is only metadata, the contents come from a lower layer.
pub const METACOPY: &[u8] = b"trusted.overlay.metacopy";
/// With [`METACOPY`]: the absolute path of the file that has the contents.
pub const REDIRECT: &[u8] = b"trusted.overlay.redirect";
/// On an empty regular file: a whiteout, like the 0/0 character device.
pub const XWHITEOUT: &[u8] = b"trusted.overlay.whiteout";
/// On a directory, empty: the directory may hold whiteouts even if no lower layer has it. Without
/// this marker overlayfs lists such a directory unchanged, whiteouts included.
pub const ORIGIN: &[u8] = b"trusted.overlay.origin";
/// Micabox's own, on a directory: the layer has no entry for the directory, only for something
/// inside, so its attributes are those of the directory below.
pub const IMPLIED: &[u8] = b"trusted.overlay.implied";

/// Returns the name under which an archive's attribute is stored: names in overlayfs's own
/// namespace are escaped, all others are unchanged.
pub fn escape_xattr_name(name: &[u8]) -> Box<[u8]> {
    match name.strip_prefix(PREFIX) {
        Some(rest) => [ESCAPED_PREFIX, rest].concat().into(),
        None => name.into(),
    }
}

/// Returns the archive's name of a stored attribute: the inverse of [`escape_xattr_name`].
pub fn unescape_xattr_name(name: &[u8]) -> Box<[u8]> {
    match name.strip_prefix(ESCAPED_PREFIX) {
        Some(rest) => [PREFIX, rest].concat().into(),
        None => name.into(),
    }
}

/// Whether an attribute is a marker that overlayfs hides.
pub fn is_marker(name: &[u8]) -> bool {
    name.starts_with(PREFIX) && !name.starts_with(ESCAPED_PREFIX)
}

/// Hides `name` of the layers below: adds a character device 0/0, and [`ORIGIN`] on `directory` so
/// that no listing ever shows the device. Returns the inode that `name` had in this layer before.
///
/// # Errors
///
/// Those of [`Tree::link`].
pub fn add_whiteout(tree: &mut Tree, directory: InodeId, name: &[u8]) -> Result<Option<InodeId>> {
    let metadata = Metadata {
        mode: 0,
        uid: 0,
        gid: 0,
        mtime: Timestamp::EPOCH,
        xattrs: Vec::new(),
    };
    let whiteout = tree.add(metadata, Kind::CharDevice(0));
    let replaced = tree.link(directory, name, whiteout)?;
    set(tree.inode_mut(directory), ORIGIN, b"");
    Ok(replaced)
}

/// Hides everything in `directory` that comes from the layers below.
pub fn set_opaque(tree: &mut Tree, directory: InodeId) {
    set(tree.inode_mut(directory), OPAQUE, b"y");
}

/// Returns the inode of a hard link whose target lies in a lower layer: `metadata` is that of the
/// link's entry, `target` the absolute path of the target.
pub fn link_to_lower(mut metadata: Metadata, target: &[u8]) -> (Metadata, Kind) {
    metadata.xattrs.push(Xattr::new(METACOPY, *b""));
    metadata.xattrs.push(Xattr::new(REDIRECT, target));
    (metadata, Kind::EMPTY_FILE)
}

/// Returns the metadata of a directory that has no entry of its own in the layer.
pub fn implied_directory() -> Metadata {
    Metadata {
        mode: 0o755,
        uid: 0,
        gid: 0,
        mtime: Timestamp::EPOCH,
        xattrs: vec![Xattr::new(IMPLIED, *b"y")],
    }
}

/// Sets or replaces one attribute.
fn set(inode: &mut Inode, name: &[u8], value: &[u8]) {
    match inode.meta.xattrs.iter_mut().find(|x| &*x.name == name) {
        Some(xattr) => xattr.value = value.into(),
        None => inode.meta.xattrs.push(Xattr::new(name, value)),
    }
}
