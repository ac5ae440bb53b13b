//! Names that mark deleted files in a layer's archive (OCI image-spec, `layer.md`).

/// Prefix of a deleted file's name.
pub const PREFIX: &[u8] = b".wh.";
/// Name of a file that hides everything that lower layers have in its directory.
pub const OPAQUE: &[u8] = b".wh..wh..opq";
/// Prefix of AUFS's own files, which old images still contain.
pub const AUFS: &[u8] = b".wh..wh.";
/// Directory in which AUFS kept the contents of hard links.
pub const AUFS_LINKS: &[u8] = b".wh..wh.plnk";
