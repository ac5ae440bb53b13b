//! Errors of this crate.

use std::io;

use crate::xattr::XattrProblem;

/// Result of the fallible functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an image can't be written, read or merged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Writing the image failed, most often because the disk is full.
    #[error("cannot write the EROFS image: {0}")]
    Output(#[source] io::Error),

    /// The reader that supplies a file's bytes failed.
    #[error("cannot read the file's contents: {0}")]
    Body(#[source] io::Error),

    /// The reader that supplies a file's bytes ended early.
    #[error("the file's contents end after {got} of {expected} bytes")]
    ShortBody {
        /// Number of bytes announced.
        expected: u64,
        /// Number of bytes received.
        got: u64,
    },

    /// The data segments of a sparse file contradict each other or the file's size.
    #[error(
        "data segment of {length} bytes at offset {offset} is out of order or outside a file of \
         {size} bytes"
    )]
    Segment {
        /// Start of the offending segment in bytes.
        offset: u64,
        /// Its length in bytes.
        length: u64,
        /// The file's size in bytes.
        size: u64,
    },

    /// A file is larger than the chunks that it may have, at their largest size.
    #[error("a file of {0} bytes is larger than the 2^57 bytes that can be stored")]
    FileTooLarge(u64),

    /// Block numbers have 32 bits, so an image and what it points to end at 16 TiB.
    #[error("the image needs more than 2^32 - 1 blocks of 4 KiB")]
    ImageTooLarge,

    /// The metadata has outgrown what this writer addresses (128 GiB).
    #[error("the image has more metadata than 2^32 - 1 inode slots of 32 bytes")]
    TooManyInodes,

    /// A name that is invalid in any directory.
    #[error("invalid file name \"{}\": {reason}", shown(name))]
    Name {
        /// The name as given.
        name: Box<[u8]>,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// An entry was added to something that is not a directory.
    #[error("cannot add \"{}\": its parent is not a directory", shown(name))]
    NotADirectory {
        /// Name of the entry.
        name: Box<[u8]>,
    },

    /// A directory was given a second name.
    #[error("cannot add \"{}\": a directory can't have two names", shown(name))]
    DirectoryLinkedTwice {
        /// The second name.
        name: Box<[u8]>,
    },

    /// The source of an image being read failed.
    #[error("cannot read the EROFS image: {0}")]
    Read(#[source] io::Error),

    /// The source has no EROFS superblock.
    #[error("not an EROFS image")]
    NotErofs,

    /// Files of the image are compressed, by this algorithm.
    #[error(
        "files of the EROFS image are compressed ({0}), which is not supported: make it without that (mkfs.erofs without \
         -z), and compress all of it if need be"
    )]
    Compressed(&'static str),

    /// The image uses a part of the format that this crate does not support.
    #[error("the EROFS image uses {0}, which is not supported")]
    Unsupported(&'static str),

    /// The image contradicts itself or the format.
    #[error("corrupt EROFS image: {0}")]
    Corrupt(&'static str),

    /// The image contradicts itself or the format, at an inode.
    #[error("corrupt EROFS image: inode {nid}: {problem}")]
    CorruptInode {
        /// Number of the inode.
        nid: u64,
        /// What is wrong with it.
        problem: &'static str,
    },

    /// A failure in one layer of a stack.
    #[error("layer {number} ({}): {source}", shown(tag))]
    Layer {
        /// Number of the layer, counted from 1, the lowest.
        number: usize,
        /// Tag of the layer.
        tag: Box<[u8]>,
        /// The failure.
        source: Box<Error>,
    },

    /// The target of a hard link to a lower layer is missing or can't be linked to.
    #[error(
        "\"{}\" is a hard link to \"{}\", which {problem} in the layers below",
        shown(path),
        shown(target)
    )]
    LinkTarget {
        /// The link's absolute path.
        path: Box<[u8]>,
        /// The target as the link stores it.
        target: Box<[u8]>,
        /// What is wrong with the target.
        problem: &'static str,
    },

    /// An inode that the format can't represent.
    #[error("cannot store \"{}\": {problem}", shown(path))]
    Inode {
        /// One path of the inode, absolute within the image.
        path: Box<[u8]>,
        /// What can't be stored.
        problem: InodeProblem,
    },
}

/// How many bytes of a foreign name a message shows.
const SHOWN: usize = 400;

/// Formats a name for a message. A long name is cut to its end, which distinguishes paths.
fn shown(name: &[u8]) -> String {
    match name.len().checked_sub(SHOWN) {
        None | Some(0) => name.escape_ascii().to_string(),
        Some(cut) => format!("...{}", name[cut..].escape_ascii()),
    }
}

/// The reason why an inode can't be stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InodeProblem {
    /// See [`XattrProblem`].
    #[error(transparent)]
    Xattr(#[from] XattrProblem),

    /// Linux has neither empty symbolic links nor ones of 4096 bytes and more.
    #[error("a symbolic link's target has {0} bytes; 1 to 4095 are possible")]
    SymlinkLength(usize),

    /// All readers treat a symbolic link's target as a C string.
    #[error("a symbolic link's target contains a NUL byte")]
    SymlinkNul,

    /// Nanoseconds are always below one second.
    #[error("the modification time has {0} nanoseconds; 999999999 is the most")]
    Nanoseconds(u32),
}
