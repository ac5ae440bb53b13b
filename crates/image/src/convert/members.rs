//! Archives member by member, for programs that put them elsewhere than into an image.

use std::io::{BufRead, Read};

use super::tar::{Error as TarError, Reader};
use super::xattr;
use crate::limits::Limits;

pub use super::tar::Type as MemberKind;

/// Prefix of overlayfs's own attributes, and what stands for it where they are escaped.
const OVERLAY: &[u8] = b"trusted.overlay.";
const ESCAPED: &[u8] = b"trusted.overlay.overlay.";

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

/// Why an archive can't be read on.
#[derive(Debug, thiserror::Error)]
#[error("byte {offset} of the archive, \"{}\": {reason}", name.escape_ascii())]
pub struct MembersError {
    /// Where, in bytes from the archive's start.
    pub offset: u64,
    /// The member that was read last.
    pub name: Vec<u8>,
    /// Why.
    pub reason: String,
}

/// Reads an uncompressed archive from a stream, once, front to back.
pub struct Members<R> {
    reader: Reader<R>,
    limits: Limits,
}

impl<R: BufRead> Members<R> {
    /// Members of the archive in `input`.
    pub fn new(input: R, limits: &Limits) -> Self {
        Self {
            reader: Reader::new(input, limits.clone()),
            limits: limits.clone(),
        }
    }

    /// The next member; the unread rest of the contents of the one before is skipped. `None`
    /// after the archive's end.
    pub fn next_member(&mut self) -> Result<Option<Member>, MembersError> {
        let entry = match self.reader.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.error(&error)),
        };
        let xattrs = xattr::from_records(&entry.records, self.limits.xattr_size);
        let (xattrs, _) = xattrs.map_err(|problem| self.failure(problem.to_string()))?;
        Ok(Some(Member {
            path: entry.path,
            kind: entry.kind,
            target: entry.target,
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            mtime: (entry.mtime.seconds, entry.mtime.nanos),
            device: entry.device,
            size: entry.size,
            segments: entry.sparse.map(|map| {
                let extents = map.extents.iter();
                extents
                    .map(|extent| (extent.offset, extent.length))
                    .collect()
            }),
            xattrs: xattrs
                .into_iter()
                .map(|xattr| (unescaped(&xattr.name), xattr.value.to_vec()))
                .collect(),
        }))
    }

    /// The stored bytes of the member that was read last, without holes.
    pub fn body(&mut self) -> impl Read {
        self.reader.body()
    }

    fn error(&self, error: &TarError) -> MembersError {
        self.failure(error.to_string())
    }

    fn failure(&self, reason: String) -> MembersError {
        MembersError {
            offset: self.reader.offset(),
            name: self.reader.name().to_vec(),
            reason,
        }
    }
}

/// A name as the archive has it: what passes for a layer's marker there does no harm here.
fn unescaped(name: &[u8]) -> Vec<u8> {
    match name.strip_prefix(ESCAPED) {
        Some(rest) => [OVERLAY, rest].concat(),
        None => name.to_vec(),
    }
}
