//! Names that say in a layer's archive what is gone (OCI image-spec, `layer.md`).

/// What the name of something that is gone begins with.
pub const PREFIX: &[u8] = b".wh.";
/// A file that hides everything that lower layers have in its directory.
pub const OPAQUE: &[u8] = b".wh..wh..opq";
/// What the names of AUFS's own files begin with, which old images still carry.
pub const AUFS: &[u8] = b".wh..wh.";
/// Where AUFS kept the contents of hard links.
pub const AUFS_LINKS: &[u8] = b".wh..wh.plnk";
