//! `mica ext4 import`

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use micabox_ext4::import::{Importer, Kind, Member};
use micabox_ext4::{Ext4, Owner, Segment, Timestamp};
use micabox_image::Limits;
use micabox_image::convert::members::{self, MemberKind, Members};

use super::{about, open_for_writing};
use crate::Outcome;
use crate::failure::Failure;
use crate::output::{print, size};

/// Bytes of the archive read at once.
const BUFFER: usize = 1 << 20;

/// Unpack a tar archive into a filesystem
///
/// Keeps owners, times, extended attributes, access control lists, devices, hard links and
/// holes. What is there already is replaced.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
    /// The archive, not compressed; `-` for stdin
    archive: PathBuf,
}

/// Unpacks an archive.
pub fn execute(args: &Args) -> Outcome {
    let mut filesystem = open_for_writing(&args.file)?;
    let archive: Box<dyn BufRead> = match args.archive.as_os_str() == "-" {
        true => Box::new(BufReader::with_capacity(BUFFER, io::stdin().lock())),
        false => {
            let file = File::open(&args.archive).map_err(about(&args.archive))?;
            Box::new(BufReader::with_capacity(BUFFER, file))
        }
    };
    let imported = import(&mut filesystem, archive, &args.archive);
    // Even of a failed import, what there is must be whole.
    let closed = filesystem.close().map_err(about(&args.file));
    let (members, bytes) = imported?;
    closed?;
    print(&format!("{members} members, {} of contents\n", size(bytes)))?;
    Ok(0)
}

fn import(
    filesystem: &mut Ext4<File>,
    archive: impl BufRead,
    path: &Path,
) -> Result<(u64, u64), Failure> {
    let mut members = Members::new(archive, &Limits::default());
    let mut importer = Importer::new(filesystem);
    while let Some(member) = members.next_member().map_err(about(path))? {
        let segments = member.segments.as_ref().map(|segments| {
            let each = segments.iter();
            each.map(|&(offset, length)| Segment { offset, length })
                .collect::<Vec<_>>()
        });
        let xattrs: Vec<_> = member
            .xattrs
            .iter()
            .map(|(name, value)| (name.as_slice(), value.as_slice()))
            .collect();
        let given = Member {
            path: &member.path,
            kind: kind(&member, segments.as_deref()),
            owner: Owner {
                permissions: member.mode,
                uid: member.uid,
                gid: member.gid,
            },
            mtime: Timestamp {
                seconds: member.mtime.0,
                nanos: member.mtime.1,
            },
            xattrs: &xattrs,
        };
        importer
            .add(&given, &mut members.body())
            .map_err(|error| Failure::of(&error))?;
    }
    let imported = importer.finish().map_err(|error| Failure::of(&error))?;
    Ok((imported.members, imported.bytes))
}

fn kind<'m>(member: &'m members::Member, segments: Option<&'m [Segment]>) -> Kind<'m> {
    let (major, minor) = member.device;
    match member.kind {
        MemberKind::File => Kind::File {
            size: member.size,
            segments,
        },
        MemberKind::HardLink => Kind::HardLink(&member.target),
        MemberKind::Symlink => Kind::Symlink(&member.target),
        MemberKind::CharDevice => Kind::CharDevice(major, minor),
        MemberKind::BlockDevice => Kind::BlockDevice(major, minor),
        MemberKind::Directory => Kind::Directory,
        MemberKind::Fifo => Kind::Fifo,
    }
}
