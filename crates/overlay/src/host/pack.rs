//! Packs host files into an archive.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use micabox_tar::{Attributes, Kind, Member, Timestamp, Writer};

/// Bytes that are written to the pipe at a time.
const BUFFER: usize = 256 << 10;

/// How to treat devices, FIFOs and sockets. Archives can't hold sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Devices and FIFOs are packed; sockets are left out.
    Packed,
    /// Any of them is an error.
    Refused,
}

/// Options of packing.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    /// Whether a symbolic link at the top is followed.
    pub follow: bool,
    /// Whether owners are kept; otherwise root owns everything.
    pub owners: bool,
    /// How to treat devices, FIFOs and sockets.
    pub special: Special,
}

impl Packing {
    /// Writes the files at `from` as an archive, with the members below `name`, or at the top if
    /// `name` is empty.
    ///
    /// # Errors
    /// Errors of the host's files, with their paths, and of `to`.
    pub fn pack(self, from: &Path, name: &[u8], to: impl Write) -> io::Result<()> {
        let mut archive = Archive {
            writer: Writer::new(BufWriter::with_capacity(BUFFER, to)),
            packing: self,
            linked: HashMap::new(),
        };
        let metadata = if self.follow {
            fs::metadata(from)?
        } else {
            fs::symlink_metadata(from)?
        };
        let name = PathBuf::from(OsStr::from_bytes(name));
        let mut left = vec![(from.to_owned(), name, metadata)];
        while let Some((path, name, metadata)) = left.pop() {
            let at = |error: io::Error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            };
            if !metadata.is_dir() {
                archive.one(&path, &name, &metadata).map_err(at)?;
                continue;
            }
            if name != Path::new("") {
                archive.one(&path, &name, &metadata).map_err(at)?;
            }
            let mut entries = fs::read_dir(&path)
                .and_then(|entries| entries.collect::<io::Result<Vec<_>>>())
                .map_err(at)?;
            // The last one is popped first.
            entries.sort_by_key(|entry| std::cmp::Reverse(entry.file_name()));
            for entry in entries {
                let metadata = entry.metadata().map_err(at)?;
                left.push((entry.path(), name.join(entry.file_name()), metadata));
            }
        }
        archive.writer.finish().map(drop)
    }
}

struct Archive<W: Write> {
    writer: Writer<W>,
    packing: Packing,
    /// First names of files that have several, by device and inode.
    linked: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Archive<W> {
    fn one(&mut self, path: &Path, name: &Path, metadata: &Metadata) -> io::Result<()> {
        let owners = self.packing.owners;
        let add = |writer: &mut Writer<_>, kind| writer.add(&member(name, metadata, owners, kind));
        if metadata.is_dir() {
            return add(&mut self.writer, Kind::Directory);
        }
        if metadata.is_symlink() {
            let target = fs::read_link(path)?.into_os_string().into_vec();
            return add(&mut self.writer, Kind::Symlink(target));
        }
        if metadata.nlink() > 1 {
            let file = (metadata.dev(), metadata.ino());
            if let Some(first) = self.linked.get(&file) {
                let first = first.as_os_str().as_bytes().to_vec();
                return add(&mut self.writer, Kind::HardLink(first));
            }
            self.linked.insert(file, name.to_owned());
        }
        if metadata.is_file() {
            let file = File::open(path)?;
            // The file's size may still change; the size in the archive can't.
            let kind = Kind::file(file.metadata()?.len());
            let member = member(name, metadata, owners, kind);
            let fill = |offset, piece: &mut [u8]| fill(&file, offset, piece);
            return self.writer.add_file(&member, fill);
        }
        if self.packing.special == Special::Refused {
            let what = "devices, FIFOs and sockets are not copied in";
            return Err(io::Error::other(what));
        }
        let kind = metadata.file_type();
        let device = metadata.rdev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        if kind.is_fifo() {
            add(&mut self.writer, Kind::Fifo)
        } else if kind.is_char_device() {
            add(&mut self.writer, Kind::CharDevice(major, minor))
        } else if kind.is_block_device() {
            add(&mut self.writer, Kind::BlockDevice(major, minor))
        } else {
            Ok(())
        }
    }
}

fn member(name: &Path, metadata: &Metadata, owners: bool, kind: Kind) -> Member {
    let (uid, gid) = if owners {
        (metadata.uid(), metadata.gid())
    } else {
        (0, 0)
    };
    Member {
        path: name.as_os_str().as_bytes().to_vec(),
        kind,
        attributes: Attributes {
            mode: (metadata.mode() & 0o7777) as u16,
            uid,
            gid,
            mtime: Timestamp {
                seconds: metadata.mtime(),
                nanos: u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
            },
            xattrs: Vec::new(),
        },
    }
}

/// Reads from a file; zeros after its end.
fn fill(file: &File, offset: u64, piece: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = piece.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => {
                rest.fill(0);
                return Ok(());
            }
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
