//! Members of archives, as `micabox_tar` has them; leaves with its last caller.

use alloc::vec::Vec;
use std::io::{self, Write};

use crate::{Owner, Segment, Timestamp};

/// What a member is.
#[derive(Debug, Clone, Copy)]
pub enum Kind<'m> {
    /// A file of this many bytes. If parts are named, only those have contents, one after the
    /// other; the rest are holes. They are in order, disjoint and within the file.
    File {
        /// Bytes, holes included.
        size: u64,
        /// The parts with contents.
        segments: Option<&'m [Segment]>,
    },
    /// Another name for the file at this path.
    HardLink(&'m [u8]),
    /// A symbolic link with this target.
    Symlink(&'m [u8]),
    /// A directory. One that exists gets the attributes.
    Directory,
    /// A character device with major and minor number.
    CharDevice(u32, u32),
    /// A block device with major and minor number.
    BlockDevice(u32, u32),
    /// A FIFO.
    Fifo,
}

/// A member of an archive.
#[derive(Debug, Clone)]
pub struct Member<'m> {
    /// Its path: any bytes but NUL. A directory's has no slash at its end; an empty one is the
    /// archive's root.
    pub path: &'m [u8],
    /// What it is.
    pub kind: Kind<'m>,
    /// Permissions and owner.
    pub owner: Owner,
    /// Last change of the contents; also becomes that of the last access.
    pub mtime: Timestamp,
    /// Extended attributes by full name, access control lists in `setxattr`'s form.
    pub xattrs: &'m [(&'m [u8], &'m [u8])],
}

impl Member<'_> {
    fn owned(&self) -> micabox_tar::Member {
        use micabox_tar::Kind as To;
        let pair = |(name, value): &(&[u8], &[u8])| (name.to_vec(), value.to_vec());
        micabox_tar::Member {
            path: self.path.to_vec(),
            kind: match self.kind {
                Kind::File { size, segments } => To::File {
                    size,
                    segments: segments.map(<[Segment]>::to_vec),
                },
                Kind::HardLink(target) => To::HardLink(target.to_vec()),
                Kind::Symlink(target) => To::Symlink(target.to_vec()),
                Kind::Directory => To::Directory,
                Kind::CharDevice(major, minor) => To::CharDevice(major, minor),
                Kind::BlockDevice(major, minor) => To::BlockDevice(major, minor),
                Kind::Fifo => To::Fifo,
            },
            attributes: micabox_tar::Attributes {
                mode: self.owner.permissions,
                uid: self.owner.uid,
                gid: self.owner.gid,
                mtime: self.mtime,
                xattrs: self.xattrs.iter().map(pair).collect::<Vec<_>>(),
            },
        }
    }
}

/// Writes an archive, member by member.
#[derive(Debug)]
pub struct Writer<W>(micabox_tar::Writer<W>);

impl<W: Write> Writer<W> {
    /// An archive without members.
    pub fn new(output: W) -> Self {
        Self(micabox_tar::Writer::new(output))
    }

    /// Adds a member without contents: any but a file of more than 0 bytes.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn add(&mut self, member: &Member<'_>) -> io::Result<()> {
        self.0.add(&member.owned())
    }

    /// Adds a file. `read` fills a buffer with its bytes from an offset on.
    ///
    /// # Errors
    ///
    /// Those of the output and of `read`; the archive is not whole then.
    pub fn add_file<E: From<io::Error>>(
        &mut self,
        member: &Member<'_>,
        read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.0.add_file(&member.owned(), read)
    }

    /// Ends the archive, and gives back its output.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn finish(self) -> io::Result<W> {
        self.0.finish()
    }
}
