//! Walks a filesystem, as the members of an archive.

use std::collections::HashMap;
use std::io::Write;

use micabox_memfs::{Errno, FileKind, Filesystem, ROOT, Seek, Stat};
use micabox_tar::{Attributes, Kind, Member, Segment, Writer};

use super::{KeepError, ReadAt};

/// Takes the members of a filesystem: directories before what is in them, names in the order of their
/// bytes.
pub(super) trait Members {
    /// Takes a member; `read` reads a file's contents.
    fn take(&mut self, member: &Member, read: &mut ReadAt<'_, KeepError>) -> Result<(), KeepError>;
}

/// Members that become an archive.
pub(super) struct Archive<W: Write>(pub(super) Writer<W>);

impl<W: Write> Members for Archive<W> {
    fn take(&mut self, member: &Member, read: &mut ReadAt<'_, KeepError>) -> Result<(), KeepError> {
        self.0.add_file(member, read)
    }
}

/// Gives all members of a filesystem, the root first, whose path is empty.
pub(super) fn walk(files: &Filesystem, members: &mut dyn Members) -> Result<(), KeepError> {
    // First names of files that have several.
    let mut linked: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut left = vec![(
        Vec::new(),
        Held {
            files,
            number: ROOT,
        },
    )];
    while let Some((path, held)) = left.pop() {
        let number = held.number;
        let at = |error| KeepError::file(&path, error);
        let stat = files.stat(number).map_err(at)?;
        if stat.kind == FileKind::Directory {
            let mut entries = entries(files, number).map_err(at)?;
            // The last is taken first.
            entries.sort_unstable_by(|(one, _), (other, _)| other.cmp(one));
            left.extend(
                entries
                    .into_iter()
                    .map(|(name, held)| (join(&path, &name), held)),
            );
        }
        let first = linked.get(&number).cloned();
        let kind = match first {
            Some(first) => Kind::HardLink(first),
            None => match kind(files, &stat).map_err(at)? {
                Some(kind) => kind,
                None => continue,
            },
        };
        if stat.links > 1 && stat.kind != FileKind::Directory {
            linked.entry(number).or_insert_with(|| path.clone());
        }
        let attributes = attributes(files, &stat).map_err(at)?;
        let member = Member {
            path: path.clone(),
            kind,
            attributes,
        };
        members.take(&member, &mut |offset, buffer| {
            let read = files.read(number, offset, buffer.len() as u64, |pieces| {
                let mut filled = 0;
                for piece in pieces {
                    let end = filled + piece.len();
                    if let Some(place) = buffer.get_mut(filled..end) {
                        place.copy_from_slice(piece);
                    }
                    filled = end;
                }
                // What was cut off meanwhile.
                buffer.get_mut(filled..).unwrap_or_default().fill(0);
            });
            read.map_err(|error| KeepError::file(&member.path, error))
        })?;
    }
    Ok(())
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        name.to_vec()
    } else {
        [path, name].join(&b'/')
    }
}

/// An inode that stays as long as this does, also one of a lower.
struct Held<'a> {
    files: &'a Filesystem,
    number: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.number != ROOT {
            self.files.forget(self.number, 1);
        }
    }
}

fn entries(files: &Filesystem, directory: u64) -> Result<Vec<(Vec<u8>, Held<'_>)>, Errno> {
    let mut entries = Vec::new();
    let mut held = Ok(());
    files.list(directory, 0, |entry, hold| {
        // All but the directory itself and the one above.
        let Some(hold) = hold else { return true };
        held = hold().map(|stat| {
            let number = stat.number;
            entries.push((entry.name.to_vec(), Held { files, number }));
        });
        held.is_ok()
    })?;
    held?;
    Ok(entries)
}

/// Returns a member's kind; None for a socket.
fn kind(files: &Filesystem, stat: &Stat) -> Result<Option<Kind>, Errno> {
    let (major, minor) = stat.device;
    Ok(Some(match stat.kind {
        FileKind::File => Kind::File {
            size: stat.size,
            segments: Some(segments(files, stat)?),
        },
        FileKind::Directory => Kind::Directory,
        FileKind::Symlink => Kind::Symlink(files.read_link(stat.number)?),
        FileKind::CharDevice => Kind::CharDevice(major, minor),
        FileKind::BlockDevice => Kind::BlockDevice(major, minor),
        FileKind::Fifo => Kind::Fifo,
        FileKind::Socket => return Ok(None),
    }))
}

/// Returns the parts of a file that were written.
fn segments(files: &Filesystem, stat: &Stat) -> Result<Vec<Segment>, Errno> {
    let mut segments = Vec::new();
    let mut at = 0;
    while at < stat.size {
        let start = match files.seek(stat.number, at, Seek::Data) {
            Err(Errno::NXIO) => break,
            start => start?,
        };
        let end = files.seek(stat.number, start, Seek::Hole)?;
        segments.push(Segment {
            offset: start,
            length: end - start,
        });
        at = end;
    }
    Ok(segments)
}

fn attributes(files: &Filesystem, stat: &Stat) -> Result<Attributes, Errno> {
    let names = files.xattr_names(stat.number)?;
    let names = names
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    let xattrs = names.map(|name| Ok((name.to_vec(), files.xattr(stat.number, name)?)));
    Ok(Attributes {
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        mtime: stat.mtime,
        xattrs: xattrs.collect::<Result<_, Errno>>()?,
    })
}
