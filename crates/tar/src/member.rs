//! The description of a file in an archive.

use micabox_file::{Segment, Timestamp};

/// A member of an archive, with all extensions applied. Its contents are separate: see
/// [`crate::Reader::body`] and [`crate::Writer::add_file`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its path: any bytes but NUL. A reader returns it as stored in the archive, possibly with
    /// `..` or a leading slash. For a writer a directory's path must not end in a slash, and an
    /// empty path is the archive's root.
    pub path: Vec<u8>,
    /// Its type.
    pub kind: Kind,
    /// Permissions, owners, time, extended attributes.
    pub attributes: Attributes,
}

/// The type of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File {
        /// Length in bytes, holes included.
        size: u64,
        /// The parts with contents, if there are holes: in order, disjoint, within the file. The
        /// archive stores their bytes without gaps.
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
    /// Returns a file of this many bytes without holes.
    #[must_use]
    pub fn file(size: u64) -> Self {
        Self::File {
            size,
            segments: None,
        }
    }

    /// Returns the target of a hard or symbolic link; empty for other members.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        match self {
            Self::HardLink(target) | Self::Symlink(target) => target,
            _ => b"",
        }
    }
}

/// The attributes that all kinds of members have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Permission bits, 07777.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change of the contents.
    pub mtime: Timestamp,
    /// Extended attributes by full name, without duplicates, access control lists in the form of
    /// `setxattr(2)`. Empty in a member from `Reader::next_member`.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}
