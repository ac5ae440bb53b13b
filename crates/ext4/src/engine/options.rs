//! How a filesystem is opened.

use micabox_file::Timestamp;

/// How a filesystem is opened. The defaults fit a program that has one filesystem open and some
/// hundred megabytes of memory to spare.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of files' contents to keep in memory, changed or not. Half of them may be changed
    /// before they are written.
    pub page_cache: usize,
    /// Bytes of metadata blocks to keep in memory. What the journal needs kept comes on top.
    pub block_cache: usize,
    /// Inodes to keep in memory.
    pub inode_cache: usize,
    /// Names to keep in memory.
    pub name_cache: usize,
    /// Where the times of what is changed come from.
    pub clock: fn() -> Timestamp,
    /// Whether [`super::Ext4::open`] takes a filesystem that is marked as having errors
    /// ([`super::Ext4::has_errors`]). Linux mounts it with a warning, replays its journal and drops
    /// its list of orphans without a look at them; so does this crate. For copies, and for what
    /// must go on as it would with Linux; the mark stays until a check removes it.
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
