//! The markers with which one layer tells overlayfs what it does to the layers below.
//!
//! Source of the rules: Linux, `Documentation/filesystems/overlayfs.rst`. All of them are
//! attributes in overlayfs's own namespace, which it hides from whoever looks at the
//! overlay; the merge understands and drops them.

use crate::Result;
use crate::Timestamp;
use crate::tree::{Inode, InodeId, Kind, Metadata, Tree};
use crate::xattr::Xattr;

/// Attributes with this prefix belong to overlayfs.
pub const PREFIX: &[u8] = b"trusted.overlay.";
/// Attributes with this prefix show up without the second `overlay.` (Linux 6.7 and newer):
/// how an archive's own `trusted.overlay.*` travels through an overlay unharmed.
pub const ESCAPED_PREFIX: &[u8] = b"trusted.overlay.overlay.";
/// `y` on a directory: nothing of the directories below it shows through.
pub const OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// On a regular file: metadata only, the contents come from a lower layer.
pub const METACOPY: &[u8] = b"trusted.overlay.metacopy";
/// With [`METACOPY`]: the absolute path of the file that has the contents.
pub const REDIRECT: &[u8] = b"trusted.overlay.redirect";
/// On an empty regular file: a whiteout, like the 0/0 character device.
pub const XWHITEOUT: &[u8] = b"trusted.overlay.whiteout";
/// On a directory, empty: it may hold whiteouts even where nothing lies below it. Without
/// it overlayfs lists such a directory as it is, whiteouts included.
pub const ORIGIN: &[u8] = b"trusted.overlay.origin";
/// Ours, on a directory: the layer has no entry for it, only for something inside, so its
/// attributes are those of the directory below.
pub const IMPLIED: &[u8] = b"trusted.overlay.implied";

/// The name under which an archive's attribute is stored: overlayfs's own namespace is
/// escaped, everything else stays as it is.
pub fn escape_xattr_name(name: &[u8]) -> Box<[u8]> {
    match name.strip_prefix(PREFIX) {
        Some(rest) => [ESCAPED_PREFIX, rest].concat().into(),
        None => name.into(),
    }
}

/// The name that an archive has for a stored attribute: [`escape_xattr_name`], back.
pub fn unescape_xattr_name(name: &[u8]) -> Box<[u8]> {
    match name.strip_prefix(ESCAPED_PREFIX) {
        Some(rest) => [PREFIX, rest].concat().into(),
        None => name.into(),
    }
}

/// Whether an attribute is a marker that overlayfs keeps to itself.
pub fn is_marker(name: &[u8]) -> bool {
    name.starts_with(PREFIX) && !name.starts_with(ESCAPED_PREFIX)
}

/// Hides `name` of the layers below: a character device 0/0, plus [`ORIGIN`] on `directory`
/// so that no listing ever shows it. Returns what `name` was in this layer before.
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

/// Hides everything in the layers below that is inside `directory`.
pub fn set_opaque(tree: &mut Tree, directory: InodeId) {
    set(tree.inode_mut(directory), OPAQUE, b"y");
}

/// The inode of a hard link whose target lies in a lower layer: `metadata` is the link
/// entry's own, `target` the absolute path of the target.
pub fn link_to_lower(mut metadata: Metadata, target: &[u8]) -> (Metadata, Kind) {
    metadata.xattrs.push(Xattr::new(METACOPY, *b""));
    metadata.xattrs.push(Xattr::new(REDIRECT, target));
    (metadata, Kind::EMPTY_FILE)
}

/// The metadata of a directory that has no entry of its own in the layer.
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
