//! Errors of this crate.

use alloc::boxed::Box;
use core::fmt;

use crate::device::DeviceError;

/// Result of the fallible functions of this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The reason why a filesystem can't be opened, or why an operation on it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error("cannot access the filesystem's device: {0}")]
    Device(#[from] DeviceError),

    /// The device has no superblock.
    #[error("not an ext4 filesystem")]
    NotExt4,

    /// The filesystem uses a feature that prevents reading.
    #[error("the filesystem uses {0}, which is not supported")]
    Unsupported(&'static str),

    /// The filesystem uses a feature that prevents writing.
    #[error("the filesystem uses {0}, which is only supported for reading")]
    ReadOnlyFeature(&'static str),

    /// The filesystem is marked as having errors, and writing was requested.
    #[error("the filesystem is marked as having errors; let e2fsck repair it before writing to it")]
    MarkedDamaged,

    /// The filesystem contradicts itself or the format.
    #[error("corrupt ext4 filesystem: {place}: {problem}")]
    Corrupt {
        /// The damaged part.
        place: Place,
        /// Description of the damage.
        problem: &'static str,
    },

    /// An operation that fails with an error of POSIX.
    #[error("{0}")]
    Os(Errno),

    /// An operation on a path failed.
    #[error("\"{}\": {source}", path.escape_ascii())]
    At {
        /// The path as given.
        path: Box<[u8]>,
        /// The failure.
        source: Box<Error>,
    },

    /// An earlier error left memory and disk inconsistent, so nothing more is written.
    #[error("an earlier error stopped writing to this filesystem; open it again")]
    Stopped,
}

impl Error {
    /// Returns the nearest POSIX error number.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Os(errno) => *errno,
            Self::At { source, .. } => source.errno(),
            Self::Device(_) => Errno::InputOutput,
            Self::NotExt4 => Errno::Invalid,
            Self::Unsupported(_) => Errno::NotSupported,
            Self::ReadOnlyFeature(_) | Self::Stopped | Self::MarkedDamaged => Errno::ReadOnly,
            Self::Corrupt { .. } => Errno::Corrupt,
        }
    }

    pub(crate) fn at(self, path: &[u8]) -> Self {
        Self::At {
            path: path.into(),
            source: Box::new(self),
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

/// The part of a filesystem that an error concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The superblock.
    Superblock,
    /// A block group, by number.
    Group(u32),
    /// An inode, by number.
    Inode(u32),
    /// A block, by number.
    Block(u64),
    /// The journal.
    Journal,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock => f.write_str("superblock"),
            Self::Group(group) => write!(f, "group {group}"),
            Self::Inode(inode) => write!(f, "inode {inode}"),
            Self::Block(block) => write!(f, "block {block}"),
            Self::Journal => f.write_str("journal"),
        }
    }
}

impl Place {
    /// Returns the error for damage at this place.
    #[must_use]
    pub fn corrupt(self, problem: &'static str) -> Error {
        Error::Corrupt {
            place: self,
            problem,
        }
    }
}

macro_rules! errno {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// The errors of POSIX, with Linux's numbers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(i32)]
        pub enum Errno {
            $( $(#[$doc])* $name = $number, )*
        }

        impl fmt::Display for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $( Self::$name => $text, )* })
            }
        }
    };
}

errno! {
    /// EPERM.
    NotPermitted = 1, "operation not permitted";
    /// ENOENT.
    NotFound = 2, "no such file or directory";
    /// EIO.
    InputOutput = 5, "input/output error";
    /// E2BIG.
    TooBig = 7, "value too large";
    /// EBUSY.
    Busy = 16, "resource busy";
    /// EEXIST.
    Exists = 17, "file exists";
    /// ENOTDIR.
    NotADirectory = 20, "not a directory";
    /// EISDIR.
    IsADirectory = 21, "is a directory";
    /// EINVAL.
    Invalid = 22, "invalid argument";
    /// EFBIG.
    FileTooLarge = 27, "file too large";
    /// ENOSPC.
    NoSpace = 28, "no space left on the filesystem";
    /// EROFS.
    ReadOnly = 30, "read-only filesystem";
    /// EMLINK.
    TooManyLinks = 31, "too many links";
    /// ERANGE.
    Range = 34, "result out of range";
    /// ENAMETOOLONG.
    NameTooLong = 36, "file name too long";
    /// ENOTEMPTY.
    NotEmpty = 39, "directory not empty";
    /// ELOOP.
    TooManySymlinks = 40, "too many levels of symbolic links";
    /// ENODATA.
    NoAttribute = 61, "no such extended attribute";
    /// EOPNOTSUPP.
    NotSupported = 95, "operation not supported";
    /// ESTALE.
    Stale = 116, "no such inode";
    /// EUCLEAN.
    Corrupt = 117, "filesystem needs cleaning";
}

impl Errno {
    /// Returns Linux's error number.
    #[must_use]
    pub fn number(self) -> i32 {
        self as i32
    }
}
