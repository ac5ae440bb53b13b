//! What an archive says of a file.

use micabox_file::{Segment, Timestamp};

/// A member of an archive, all extensions applied. Its contents are apart from it: see
/// [`crate::Reader::body`] and [`crate::Writer::add_file`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its path: any bytes but NUL. A reader gives it as it stands in the archive, possibly with
    /// `..` or a leading slash. For a writer a directory's path has no slash at its end, and an
    /// empty one is the archive's root.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Permissions, owners, time, extended attributes.
    pub attributes: Attributes,
}

/// What a member is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File {
        /// Length in bytes, holes included.
        size: u64,
        /// The parts with contents, if there are holes: in order, disjoint, within the file.
        /// The archive has their bytes one after the other.
        segments: Option<Vec<Segment>>,
    },
    /// Another name for the member with this path.
    HardLink(Vec<u8>),
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// A directory.
    Directory,
    /// A character device with major and minor number.
    CharDevice(u32, u32),
    /// A block device with major and minor number.
    BlockDevice(u32, u32),
    /// A FIFO.
    Fifo,
}

impl Kind {
    /// A file of this many bytes without holes.
    #[must_use]
    pub fn file(size: u64) -> Self {
        Self::File {
            size,
            segments: None,
        }
    }

    /// The target of a hard or symbolic link; nothing for other members.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        match self {
            Self::HardLink(target) | Self::Symlink(target) => target,
            _ => b"",
        }
    }
}

/// What all kinds of members have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Permission bits, 07777.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Extended attributes by full name, no name twice, access control lists in the form of
    /// `setxattr(2)`. Empty in a member that `Reader::next` gives.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}
