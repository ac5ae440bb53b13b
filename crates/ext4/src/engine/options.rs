//! Options for opening a filesystem.

use micabox_file::Timestamp;

/// Options for opening a filesystem. The defaults fit a program that has one filesystem open and
/// some hundred megabytes of memory to spare.
#[derive(Debug, Clone)]
pub struct Options {
    /// Maximum size in bytes of files' contents in memory, changed or not. Changes are written when
    /// they reach half of it.
    pub page_cache: usize,
    /// Maximum size in bytes of metadata blocks in memory. Blocks that the journal needs come on
    /// top.
    pub block_cache: usize,
    /// Maximum number of inodes in memory.
    pub inode_cache: usize,
    /// Maximum number of names in memory.
    pub name_cache: usize,
    /// Clock for the times of changes.
    pub clock: fn() -> Timestamp,
    /// Whether [`super::Ext4::open`] accepts a filesystem that is marked as having errors
    /// ([`super::Ext4::has_errors`]). Linux mounts such a filesystem with a warning, replays its
    /// journal and drops its list of orphans unread; so does this crate. For copies, and for
    /// filesystems that must remain usable as with Linux; the mark stays until a check removes it.
    pub despite_errors: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            page_cache: 256 << 20,
            block_cache: 32 << 20,
            inode_cache: 32 << 10,
            name_cache: 64 << 10,
            #[cfg(feature = "std")]
            clock: Timestamp::now,
            #[cfg(not(feature = "std"))]
            clock: Timestamp::default,
            despite_errors: false,
        }
    }
}
