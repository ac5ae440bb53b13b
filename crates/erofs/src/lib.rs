//! The EROFS format in safe Rust: streaming writer, reader, merge, check.
//!
//! EROFS is Linux's read-only filesystem. This crate writes the uncompressed part of the format,
//! reads it without trusting any byte, merges a stack of layer images into one metadata-only image
//! ("fsmeta") and checks images on disk. It does not know about OCI, archives or virtual machines,
//! is synchronous and contains no `unsafe`.
//!
//! * [`Writer`] takes file bodies first, one at a time, and writes all metadata at the end: memory
//!   grows with the number of inodes, not with their size.
//! * [`Tree`] is the metadata while it is in memory.
//! * [`Reader`] returns a tree or an error for any bytes.
//! * [`merge`] makes one image from several, and [`check`] looks for damage.
//! * [`overlay`] names the markers that a layer has for overlayfs.
//!
//! Images have 4 KiB blocks. Every regular file starts at a block boundary and no part of it is
//! packed into its inode, so that the kernel can map all of it with DAX.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

pub mod check;
mod described;
mod emit;
mod error;
pub mod format;
pub mod merge;
mod output;
pub mod overlay;
pub mod reader;
mod source;
mod sparse;
mod tree;
mod writer;
mod xattr;

pub use described::Description;
pub use error::{Error, Result};
pub use micabox_file::{Segment, Timestamp};
pub use reader::Reader;
pub use source::{Cached, Concat, ReadAt};
pub use tree::{Chunks, Data, Directory, Inode, InodeId, Kind, Metadata, Tree};
pub use writer::{Options, Summary, Writer};
pub use xattr::{Xattr, XattrProblem};

/// Size of a filesystem block in bytes. The format allows others; Micabox writes and reads
/// only this one, which is the page size of every guest it boots.
pub const BLOCK_SIZE: u64 = 4096;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
