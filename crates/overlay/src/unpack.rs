//! Unpacks archives into an upper layer or a filesystem.

use std::io::{BufReader, Read};

use micabox_ext4::{BlockDevice, FileKind, Segment};
use micabox_tar::{Kind, Limits, Member, Members, MembersError};

use crate::edit::{Attributes, Edit, Problem};

/// Bytes of an archive that are read at a time.
const BUFFER: usize = 1 << 20;

/// Why unpacking failed; a part may be unpacked then.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The archive can't be read any further.
    #[error(transparent)]
    Archive(#[from] MembersError),
    /// A member can't be written.
    #[error("\"{}\": {problem}", path.escape_ascii())]
    Member {
        /// Its path in the archive.
        path: Vec<u8>,
        /// The problem.
        problem: Problem,
    },
}

/// Totals of what was unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Members.
    pub members: u64,
    /// Bytes of contents, without holes.
    pub bytes: u64,
}

/// Unpacks an uncompressed archive. `place` maps a member's path to its destination. Symbolic
/// links in paths are followed as by a process with that root; `..` in a member's path is refused.
/// Of two members with the same path, the later one wins.
///
/// # Errors
/// [`UnpackError`]; what came before stays.
pub fn unpack<D: BlockDevice>(
    edit: &mut Edit<D>,
    from: impl Read,
    place: impl Fn(&[u8]) -> Vec<u8>,
) -> Result<Unpacked, UnpackError> {
    let from = BufReader::with_capacity(BUFFER, from);
    let mut members = Members::new(from, Limits::default());
    let mut unpacked = Unpacked::default();
    while let Some(member) = members.next_member()? {
        unpacked.members += 1;
        let added = add(edit, &place, &member, &mut members.body());
        unpacked.bytes += added.map_err(|problem| UnpackError::Member {
            path: member.path,
            problem,
        })?;
    }
    Ok(unpacked)
}

/// Adds a member, and returns the number of bytes of its contents.
fn add<D: BlockDevice>(
    edit: &mut Edit<D>,
    place: &impl Fn(&[u8]) -> Vec<u8>,
    member: &Member,
    contents: &mut dyn Read,
) -> Result<u64, Problem> {
    let path = &*place(plain(&member.path)?);
    let attributes = Attributes::from(&member.attributes);
    let mut node = |kind, device| edit.node(path, kind, device, &attributes);
    match &member.kind {
        Kind::CharDevice(major, minor) => node(FileKind::CharDevice, (*major, *minor))?,
        Kind::BlockDevice(major, minor) => node(FileKind::BlockDevice, (*major, *minor))?,
        Kind::Fifo => node(FileKind::Fifo, (0, 0))?,
        Kind::Directory => edit.set_directory(path, &attributes)?,
        Kind::Symlink(target) => edit.symlink(path, target, &attributes)?,
        Kind::HardLink(target) => edit.link(path, &place(plain(target)?))?,
        Kind::File { size, segments } => {
            let whole = [Segment::whole(*size)];
            let parts = segments.as_deref().unwrap_or(&whole);
            return edit.file(path, &attributes, *size, parts, contents);
        }
    }
    Ok(0)
}

/// Returns the path; an error if it contains `..`.
fn plain(path: &[u8]) -> Result<&[u8], Problem> {
    if path.split(|byte| *byte == b'/').any(|name| name == b"..") {
        return Err("`..` could lead out of the filesystem".into());
    }
    Ok(path)
}
