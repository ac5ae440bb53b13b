//! `mica ext4 cp`

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use micabox_ext4::device::BlockDevice;
use micabox_ext4::{Errno, Ext4, FileKind, Ino, Owner, ROOT, SetAttributes, Stat, Timestamp};

use super::{about, bytes, open, open_for_writing};
use crate::Outcome;
use crate::failure::Failure;

/// Bytes copied at once.
const PIECE: usize = 1 << 20;

/// Copy files and directories into a filesystem or out of it
///
/// One of the two is a path within the filesystem, as `FILE:/path`. Directories are copied
/// with all that is in them. Permissions and times are kept, and into the filesystem owners.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to copy
    from: PathBuf,
    /// Where to; a directory that exists gets it inside
    to: PathBuf,
}

/// Copies.
pub fn execute(args: &Args) -> Outcome {
    match (inside(&args.from), inside(&args.to)) {
        (Some((image, path)), None) => {
            let mut filesystem = open(image)?;
            let fail = about(image);
            let ino = filesystem.resolve(bytes(path)).map_err(&fail)?;
            let to = match args.to.is_dir() {
                true => args.to.join(path.file_name().unwrap_or(OsStr::new("root"))),
                false => args.to.clone(),
            };
            copy_out(&mut filesystem, ino, &to)?;
        }
        (None, Some((image, path))) => {
            let mut filesystem = open_for_writing(image)?;
            let copied = copy_in_to(&mut filesystem, &args.from, path);
            let closed = filesystem.close().map_err(about(image));
            copied?;
            closed?;
        }
        _ => {
            return Err(
                Failure::new("one of the two must be a path within a filesystem")
                    .hint("write it as FILE:/path"),
            );
        }
    }
    Ok(0)
}

/// The two halves of `FILE:/path`.
fn inside(path: &Path) -> Option<(&Path, &Path)> {
    let text = bytes(path);
    let at = text.windows(2).position(|pair| pair == b":/")?;
    let half = |bytes| Path::new(OsStr::from_bytes(bytes));
    Some((half(text.get(..at)?), half(text.get(at + 1..)?)))
}

fn copy_out<D: BlockDevice>(filesystem: &mut Ext4<D>, ino: Ino, to: &Path) -> Result<(), Failure> {
    let fail = about(to);
    let stat = filesystem.stat(ino).map_err(&fail)?;
    match stat.kind() {
        Some(FileKind::File) => file_out(filesystem, &stat, to),
        Some(FileKind::Symlink) => {
            let target = filesystem.read_link(ino).map_err(&fail)?;
            let _ = fs::remove_file(to);
            symlink(OsStr::from_bytes(&target), to).map_err(about(to))
        }
        Some(FileKind::Directory) => {
            match fs::create_dir(to) {
                // What is there must not lead elsewhere.
                Err(_) if fs::symlink_metadata(to).is_ok_and(|found| found.is_dir()) => {}
                made => made.map_err(about(to))?,
            }
            for entry in filesystem.read_dir(ino).map_err(&fail)? {
                // A damaged filesystem could have any name.
                if entry.name.contains(&b'/') || matches!(&*entry.name, b"." | b"..") {
                    let name = entry.name.escape_ascii();
                    return Err(Failure::new(format!(
                        "cannot copy \"{name}\": not a file name"
                    )));
                }
                copy_out(
                    filesystem,
                    entry.ino,
                    &to.join(OsStr::from_bytes(&entry.name)),
                )?;
            }
            let permissions = fs::Permissions::from_mode(u32::from(stat.mode & 0o7777));
            fs::set_permissions(to, permissions).map_err(about(to))?;
            let directory = File::open(to).map_err(about(to))?;
            directory.set_times(times(&stat)).map_err(about(to))
        }
        _ => Err(Failure::new(format!(
            "{}: devices, FIFOs and sockets are not copied out",
            to.display()
        ))),
    }
}

fn file_out<D: BlockDevice>(
    filesystem: &mut Ext4<D>,
    stat: &Stat,
    to: &Path,
) -> Result<(), Failure> {
    // O_NOFOLLOW: a link of the same name must not lead elsewhere.
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(to)
        .map_err(about(to))?;
    let mut buffer = vec![0; PIECE];
    let mut offset = 0;
    while offset < stat.size {
        let count = filesystem
            .read(stat.ino, offset, &mut buffer)
            .map_err(about(to))?;
        if count == 0 {
            break;
        }
        file.write_all(&buffer[..count]).map_err(about(to))?;
        offset += count as u64;
    }
    let permissions = fs::Permissions::from_mode(u32::from(stat.mode & 0o7777));
    file.set_permissions(permissions).map_err(about(to))?;
    file.set_times(times(stat)).map_err(about(to))
}

fn times(stat: &Stat) -> FileTimes {
    let moment = |time: Timestamp| {
        let whole = Duration::from_secs(time.seconds.unsigned_abs());
        let fraction = Duration::from_nanos(time.nanos.into());
        match time.seconds < 0 {
            true => UNIX_EPOCH - whole + fraction,
            false => UNIX_EPOCH + whole + fraction,
        }
    };
    FileTimes::new()
        .set_accessed(moment(stat.atime))
        .set_modified(moment(stat.mtime))
}

/// Copies to a path within the filesystem, or into the directory that is there.
fn copy_in_to(filesystem: &mut Ext4<File>, from: &Path, path: &Path) -> Result<(), Failure> {
    let fail = about(path);
    if let Ok(ino) = filesystem.resolve(bytes(path))
        && filesystem.stat(ino).map_err(&fail)?.kind() == Some(FileKind::Directory)
    {
        let name = from.file_name().ok_or_else(|| {
            Failure::new(format!(
                "{}: has no name to be copied under",
                from.display()
            ))
        })?;
        return copy_in(filesystem, from, ino, name.as_bytes());
    }
    let (parent, name) = filesystem.resolve_parent(bytes(path)).map_err(&fail)?;
    copy_in(filesystem, from, parent, name)
}

fn copy_in(
    filesystem: &mut Ext4<File>,
    from: &Path,
    parent: Ino,
    name: &[u8],
) -> Result<(), Failure> {
    let found = fs::symlink_metadata(from).map_err(about(from))?;
    let fail = about(from);
    let owner = Owner {
        permissions: (found.mode() & 0o7777) as u16,
        uid: found.uid(),
        gid: found.gid(),
    };
    let kind = found.file_type();
    if kind.is_dir() {
        let ino = match filesystem.mkdir(parent, name, owner) {
            Err(error) if error.errno() == Errno::Exists => {
                filesystem.lookup(parent, name).map_err(&fail)?
            }
            made => made.map_err(&fail)?,
        };
        for entry in fs::read_dir(from).map_err(about(from))? {
            let entry = entry.map_err(about(from))?;
            copy_in(filesystem, &entry.path(), ino, entry.file_name().as_bytes())?;
        }
        return set_times(filesystem, ino, &found).map_err(fail);
    }
    match filesystem.unlink(parent, name) {
        Err(error) if error.errno() != Errno::NotFound => return Err(fail(error)),
        _ => {}
    }
    let ino = if kind.is_symlink() {
        let target = fs::read_link(from).map_err(about(from))?;
        filesystem.symlink(parent, name, bytes(&target), owner)
    } else if kind.is_file() {
        filesystem.create(parent, name, owner)
    } else {
        let what = "devices, FIFOs and sockets are not copied in";
        return Err(Failure::new(format!("{}: {what}", from.display())));
    };
    let ino = ino.map_err(&fail)?;
    if kind.is_file() {
        file_in(filesystem, from, ino)?;
    }
    set_times(filesystem, ino, &found).map_err(fail)
}

fn file_in(filesystem: &mut Ext4<File>, from: &Path, ino: Ino) -> Result<(), Failure> {
    let mut file = File::open(from).map_err(about(from))?;
    let mut buffer = vec![0; PIECE];
    let mut offset = 0;
    loop {
        let count = file.read(&mut buffer).map_err(about(from))?;
        if count == 0 {
            return Ok(());
        }
        let written = filesystem
            .write(ino, offset, &buffer[..count])
            .map_err(about(from))?;
        if written < count {
            let error = micabox_ext4::Error::from(Errno::NoSpace);
            return Err(about(from)(error));
        }
        offset += count as u64;
    }
}

fn set_times(
    filesystem: &mut Ext4<File>,
    ino: Ino,
    found: &fs::Metadata,
) -> Result<(), micabox_ext4::Error> {
    let time = |seconds, nanos| {
        Some(Timestamp {
            seconds,
            nanos: u32::try_from(nanos).unwrap_or(0),
        })
    };
    let set = SetAttributes {
        atime: time(found.atime(), found.atime_nsec()),
        mtime: time(found.mtime(), found.mtime_nsec()),
        ..SetAttributes::default()
    };
    match ino {
        ROOT => Ok(()),
        _ => filesystem.set_attributes(ino, &set),
    }
}
