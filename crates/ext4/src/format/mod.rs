//! The structures on disk, as in the kernel's `fs/ext4` and `include/linux/jbd2.h`.
//!
//! All structures are little-endian, except those of the journal. Decoding is total: any bytes give
//! a structure, and the code that uses a field checks it.

pub mod acl;
pub mod checksum;
pub mod directory;
pub mod extent;
pub mod features;
pub mod fields;
pub mod group;
pub mod hash;
pub mod inode;
pub mod journal;
pub mod orphan;
pub mod superblock;
pub mod xattr;
