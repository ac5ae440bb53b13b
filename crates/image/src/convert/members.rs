//! Archives member by member, as `micabox_tar` gives them; leaves with its last caller.

use std::io::{BufRead, Read};

use micabox_tar::Kind;
pub use micabox_tar::MembersError;

use crate::limits::Limits;

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberKind {
    /// A regular file, whose contents follow.
    File,
    /// Another name for an earlier member.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A directory.
    Directory,
    /// A FIFO.
    Fifo,
}

/// A member with all extensions applied.
#[derive(Debug)]
pub struct Member {
    /// The name as it stands in the archive, possibly with `..` or a leading slash.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: MemberKind,
    /// Target of a hard or symbolic link.
    pub target: Vec<u8>,
    /// Permission bits, 07777.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Seconds of the Unix epoch, and nanoseconds.
    pub mtime: (i64, u32),
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Length of a regular file in bytes, holes included.
    pub size: u64,
    /// Offset and length of the parts of a sparse file that the archive has.
    pub segments: Option<Vec<(u64, u64)>>,
    /// Extended attributes by full name; access control lists in the kernel's form.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads an uncompressed archive from a stream, once, front to back.
pub struct Members<R>(micabox_tar::Members<R>);

impl<R: BufRead> Members<R> {
    /// Members of the archive in `input`.
    pub fn new(input: R, limits: &Limits) -> Self {
        Self(micabox_tar::Members::new(input, limits.member()))
    }

    /// The next member.
    ///
    /// # Errors
    ///
    /// [`MembersError`].
    pub fn next_member(&mut self) -> Result<Option<Member>, MembersError> {
        let Some(member) = self.0.next_member()? else {
            return Ok(None);
        };
        let mut device = (0, 0);
        let (mut size, mut segments) = (0, None);
        let target = member.kind.target().to_vec();
        let kind = match member.kind {
            Kind::File {
                size: bytes,
                segments: parts,
            } => {
                size = bytes;
                segments = parts.map(|parts| {
                    let each = parts.iter();
                    each.map(|part| (part.offset, part.length)).collect()
                });
                MemberKind::File
            }
            Kind::HardLink(_) => MemberKind::HardLink,
            Kind::Symlink(_) => MemberKind::Symlink,
            Kind::Directory => MemberKind::Directory,
            Kind::CharDevice(major, minor) => {
                device = (major, minor);
                MemberKind::CharDevice
            }
            Kind::BlockDevice(major, minor) => {
                device = (major, minor);
                MemberKind::BlockDevice
            }
            Kind::Fifo => MemberKind::Fifo,
        };
        let attributes = member.attributes;
        Ok(Some(Member {
            path: member.path,
            kind,
            target,
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            mtime: (attributes.mtime.seconds, attributes.mtime.nanos),
            device,
            size,
            segments,
            xattrs: attributes.xattrs,
        }))
    }

    /// The stored bytes of the member that was read last, without holes.
    pub fn body(&mut self) -> impl Read {
        self.0.body()
    }
}
