//! Marks of deletion in layers: overlayfs's attributes and devices, OCI's names.

use micabox_ext4::{FileKind, Stat};

pub use micabox_erofs::overlay::{
    ESCAPED_PREFIX, IMPLIED, METACOPY, OPAQUE, ORIGIN, PREFIX, REDIRECT, XWHITEOUT, is_marker,
    unescape_xattr_name,
};
pub use micabox_tar::whiteout as archive;

/// The directory of an upper layer on its disk.
pub const ROOT: &[u8] = b"root";

/// Value of [`OPAQUE`] on an opaque directory.
pub const YES: &[u8] = b"y";

/// Major and minor number of the character device that is a whiteout.
pub const WHITEOUT_DEVICE: (u32, u32) = (0, 0);

/// Returns whether an inode is a whiteout: a character device with the number 0, 0.
pub fn is_whiteout(stat: &Stat) -> bool {
    stat.kind() == Some(FileKind::CharDevice) && stat.device == WHITEOUT_DEVICE
}
