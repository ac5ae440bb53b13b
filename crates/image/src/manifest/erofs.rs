//! Names of the [EROFS image specification][spec], a draft, and annotations of our own beside them.
//!
//! [spec]: https://github.com/erofs/erofs-image-spec

/// Media type of an image that is compressed as zstd frames.
pub const MEDIA_TYPE: &str = "application/vnd.erofs+zstd";
/// Media type of such an image in a stack for containerd 2.4, which knows no other.
pub const STACK_TYPE: &str = "application/vnd.erofs.layer.v1+zstd";
/// The feature of a platform (`os.features`) that images of EROFS layers ask for.
pub const FEATURE: &str = "erofs";

/// How a layer takes part in the root, if not as the next one of the stack.
pub const ROLE: &str = "org.erofs.role";
/// The role of a layer that is one of the stack.
pub const STACKED: &str = "overlay-lower";
/// The role of a layer that the next one without it has files' contents in.
pub const DEVICE: &str = "device";
/// Digest of a compressed image's contents, the hash tree included.
pub const UNCOMPRESSED: &str = "org.erofs.uncompressed-digest";

/// Where the chunk index is in the blob: `START:END`, the header of its frame included.
pub const INDEX_RANGE: &str = "org.erofs.chunk-index.range";
/// Digest of the chunk index, without that header.
pub const INDEX_DIGEST: &str = "org.erofs.chunk-index.digest";
/// Media type of the chunk index.
pub const INDEX_TYPE: &str = "org.erofs.chunk-index.mediaType";

/// Where the dm-verity tree begins in the uncompressed blob: the image's length.
pub const VERITY_OFFSET: &str = "org.erofs.dmverity.hash_offset";
/// Root digest of the dm-verity tree.
pub const VERITY_ROOT: &str = "org.erofs.dmverity.root_digest";
/// Bytes of a block of the dm-verity tree.
pub const VERITY_BLOCK: &str = "org.erofs.dmverity.block_size";

/// Beginning of annotations of our own.
pub const OWN: &str = "org.micabox.";
/// Of a device: digest of the uncompressed archive that it was made of.
pub const ARCHIVE: &str = "org.micabox.archive";
/// Of a device: where the image's metadata begins, in bytes. It ends with the image; before it are files' contents.
pub const METADATA: &str = "org.micabox.metadata";
/// Of a device: the checksum of the image, as the store has it. It is compared once all of the image is there.
pub const CHECKSUM: &str = "org.micabox.checksum";
/// Of a manifest: the [`crate::identity::FORMAT`] of its layers. Another version makes others of the same archives.
pub const FORMAT: &str = "org.micabox.format";
/// Of a manifest: the version of zstd that made its blobs. Another one may compress the same chunks otherwise.
pub const ZSTD: &str = "org.micabox.zstd";

/// Beginning of the media types of maps of other layers' chunks: "MUST be silently skipped" without support.
pub const CHUNK_INDEX: &str = "application/vnd.erofs.chunk-index.";
