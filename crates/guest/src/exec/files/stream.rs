//! Does what needs an operation's streams: bytes, entries and archives.

#![expect(
    clippy::disallowed_methods,
    reason = "standard streams lead to the agent here"
)]

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};

use micabox_tar::{Limits, Members};
use micabox_tree::{Packing, Root, Source, Unpacker, Unpacking};
use micabox_wire::files::{FilePiece, FileReply};
use micabox_wire::{encode, read_message};
use rustix::fs::stat;
use rustix::io::Errno;
use rustix::stdio::{stderr, stdin, stdout};

use super::failed::Failed;
use super::reply::{send, write_all};
use super::work::{Open, Work};
use super::{list, operate};
use crate::exec::stdio::Stream;

/// Bytes that are read or written at a time: as many as a pipe holds.
const PIECE: usize = 64 << 10;

/// Most bytes of messages about what was left out: nothing reads them before the end.
const LEFT_OUT: usize = 16 << 10;

pub fn finish(work: Work) -> Result<(), Failed> {
    match work {
        Work::Done => Ok(()),
        Work::Reply(reply) => Ok(send(&stdout(), &reply)?),
        Work::Read(file, length) => copy(&file, &stdout(), length.unwrap_or(u64::MAX)),
        Work::Write(file) => copy(&stdin(), &file, u64::MAX),
        Work::WriteMany(open) => write_many(&open),
        Work::Remove(parent, name) => operate::remove_all(&parent, &name),
        Work::List(directory, depth) => entries(directory, depth),
        Work::Pack(source, path, name) => pack(source, &path, &name),
        Work::Unpack(root, path) => unpack(root, &path),
        Work::Watch(watcher) => watcher.report(&stdin(), &stdout()),
    }
}

/// Copies bytes to the end.
fn copy(from: &impl AsFd, to: &impl AsFd, mut left: u64) -> Result<(), Failed> {
    let mut buffer = vec![0; PIECE];
    while left > 0 {
        let most = left.min(PIECE as u64) as usize;
        let piece = buffer.get_mut(..most).unwrap_or_default();
        match rustix::io::read(from, &mut *piece) {
            Ok(0) => break,
            Ok(count) => {
                write_all(to, piece.get(..count).unwrap_or_default())?;
                left -= count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Writes files, each of which is announced by a [`FilePiece`].
fn write_many(open: &Open) -> Result<(), Failed> {
    let mut input = BufReader::with_capacity(PIECE, Stream(stdin()));
    let mut file: Option<(Vec<u8>, OwnedFd)> = None;
    let bad = |error: micabox_wire::Error| Failed::new(error.to_string());
    while let Some(piece) = read_message::<FilePiece>(&mut input).map_err(bad)? {
        if !piece.continues {
            let opened = open(&piece.path).map_err(|failed| failed.of(&piece.path))?;
            file = Some((piece.path, opened));
        }
        let Some((path, file)) = &file else {
            return Err(Failed::new(
                "the first piece goes on with no file".to_owned(),
            ));
        };
        fill(&mut input, file, piece.size).map_err(|failed| failed.of(path))?;
    }
    Ok(())
}

/// Writes so many bytes of the input to a file.
fn fill(input: &mut impl BufRead, file: &OwnedFd, mut left: u64) -> Result<(), Failed> {
    while left > 0 {
        let piece = match input.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            piece => piece?,
        };
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        if most == 0 {
            return Err(Failed::new("stdin ends within it".to_owned()));
        }
        write_all(file, piece.get(..most).unwrap_or_default())?;
        input.consume(most);
        left -= most as u64;
    }
    Ok(())
}

fn entries(directory: OwnedFd, depth: u32) -> Result<(), Failed> {
    let mut frames = Vec::new();
    list::list(directory, depth, |entry| {
        encode(&entry, &mut frames).map_err(|error| Failed::new(error.to_string()))?;
        if frames.len() >= PIECE {
            write_all(&stdout(), &frames)?;
            frames.clear();
        }
        Ok(())
    })?;
    Ok(write_all(&stdout(), &frames)?)
}

/// Packs what is at a path, with members below `name`.
fn pack(source: Source, path: &[u8], name: &[u8]) -> Result<(), Failed> {
    let devices = stat("/dev").ok();
    let packing = Packing {
        owners: true,
        xattrs: |_| true,
        only_plain: false,
        devices: devices.map(|devices| (devices.st_dev, devices.st_ino)),
    };
    let mut notes = Notes::default();
    let packed = source.pack(name, packing, Stream(stdout()), &mut |socket| {
        notes.add(socket.0, "a socket, which archives cannot hold");
    });
    packed.map_err(|error| match error {
        micabox_tree::Error::File {
            path: member,
            source,
        } => micabox_tree::Error::File {
            path: place(path, name, &member),
            source,
        }
        .into(),
        error => error.into(),
    })
}

/// Returns where the file of a member is, below the path that is packed.
fn place(path: &[u8], name: &[u8], member: &[u8]) -> Vec<u8> {
    let below = member.strip_prefix(name).unwrap_or(member);
    let below = below.strip_prefix(b"/").unwrap_or(below);
    // The slashes and the dot of a directory's contents.
    let mut top = path;
    while let Some(shorter) = top.strip_suffix(b"/.").or_else(|| top.strip_suffix(b"/")) {
        top = shorter;
    }
    match (top, below) {
        ([], []) => b"/".to_vec(),
        (top, []) => top.to_vec(),
        (top, below) => [top, b"/", below].concat(),
    }
}

fn unpack(root: Root, path: &[u8]) -> Result<(), Failed> {
    let is_root = rustix::process::geteuid().is_root();
    let options = Unpacking {
        owners: is_root,
        set_id: true,
        special: is_root,
        parents: true,
        whole: false,
        xattrs: |_| true,
    };
    let mut unpacker = Unpacker::new(root, options);
    let input = BufReader::with_capacity(PIECE, Stream(stdin()));
    let mut members = Members::new(input, Limits::default());
    let at = |member: &[u8]| [path, b"/", member].concat();
    let bad = |error: micabox_tar::MembersError| Failed::new(error.to_string());
    while let Some(member) = members.next_member().map_err(bad)? {
        let target = match &member.kind {
            micabox_tar::Kind::HardLink(target) => at(target),
            _ => Vec::new(),
        };
        unpacker.add(&at(&member.path), &target, &member, &mut members.body())?;
    }
    drop(members);
    let unpacked = unpacker.finish()?;
    let mut notes = Notes::default();
    if let Some(path) = unpacked.special {
        notes.add(&path, "a device or FIFO, which only root makes");
    }
    if let Some((path, name)) = unpacked.xattr {
        let name = name.escape_ascii();
        notes.add(
            &path,
            &format!("the extended attribute {name} can't be set"),
        );
    }
    // Whatever writes the archive may not know that its end has been read.
    let mut buffer = vec![0; PIECE];
    while rustix::io::read(stdin(), &mut *buffer).is_ok_and(|count| count > 0) {}
    Ok(())
}

/// Messages about what was left out.
#[derive(Default)]
struct Notes {
    bytes: usize,
}

impl Notes {
    fn add(&mut self, path: &[u8], what: &str) {
        self.bytes += path.len() + what.len();
        if self.bytes <= LEFT_OUT {
            let note = FileReply::LeftOut {
                path: path.to_vec(),
                what: what.to_owned(),
            };
            let _ = send(&stderr(), &note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn an_error_names_the_file_and_not_its_member_of_the_archive() {
        for (path, name, member, file) in [
            (
                "/",
                "root",
                "root/proc/1/attr/current",
                "/proc/1/attr/current",
            ),
            ("/.", "root", "root", "/"),
            ("/srv/", "", "a/b", "/srv/a/b"),
            ("/srv", "other", "other", "/srv"),
            ("/srv/.", "other", "other/a", "/srv/a"),
        ] {
            let found = place(path.as_bytes(), name.as_bytes(), member.as_bytes());
            assert_eq!(String::from_utf8(found).unwrap(), file);
        }
    }
}
