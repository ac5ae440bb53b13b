//! Archives as patches.

use std::fs::File;
use std::io::{BufReader, Read};

use micabox_ext4::{FileKind, Owner, Timestamp};
use micabox_image::Limits;
use micabox_image::convert::members::{Member, MemberKind, Members, MembersError};

use super::overlay::{Attributes, Overlay, Problem};

/// Bytes of an archive read at once.
const BUFFER: usize = 1 << 20;

impl From<MembersError> for Problem {
    fn from(error: MembersError) -> Self {
        Self::from(&*error.to_string())
    }
}

/// Unpacks an archive below the directory `root`.
pub(super) fn unpack(
    overlay: &mut Overlay<File>,
    root: &[u8],
    from: impl Read,
) -> Result<(), Problem> {
    let from = BufReader::with_capacity(BUFFER, from);
    let mut members = Members::new(from, &Limits::default());
    while let Some(member) = members.next_member()? {
        add(overlay, root, &member, &mut members.body()).map_err(|problem| {
            let path = String::from_utf8_lossy(&member.path);
            Problem::from(&*format!("{path}: {problem}"))
        })?;
    }
    Ok(())
}

fn add(
    overlay: &mut Overlay<File>,
    root: &[u8],
    member: &Member,
    contents: &mut dyn Read,
) -> Result<(), Problem> {
    if member
        .path
        .split(|byte| *byte == b'/')
        .any(|name| name == b"..")
    {
        return Err("a path with `..`".into());
    }
    let below = |path: &[u8]| [root, b"/", path].concat();
    let path = &*below(&member.path);
    let attributes = Attributes {
        owner: Owner {
            permissions: member.mode,
            uid: member.uid,
            gid: member.gid,
        },
        mtime: Some(Timestamp {
            seconds: member.mtime.0,
            nanos: member.mtime.1,
        }),
        xattrs: member.xattrs.clone(),
    };
    let mut node = |kind| {
        overlay
            .node(path, kind, member.device, &attributes)
            .map(drop)
    };
    match member.kind {
        MemberKind::CharDevice => node(FileKind::CharDevice),
        MemberKind::BlockDevice => node(FileKind::BlockDevice),
        MemberKind::Fifo => node(FileKind::Fifo),
        MemberKind::Directory => {
            let place = overlay.directory(path)?;
            overlay.set_directory(&place, &attributes)
        }
        MemberKind::File => {
            let whole = [(0, member.size)];
            let parts = member.segments.as_deref().unwrap_or(&whole);
            overlay.file(path, &attributes, member.size, parts, contents)
        }
        MemberKind::Symlink => overlay.symlink(path, &member.target, &attributes).map(drop),
        MemberKind::HardLink => overlay.link(path, &below(&member.target)),
    }
}
