//! Files of the host's as an archive.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

/// Bytes that go into the pipe at once.
const BUFFER: usize = 256 << 10;

/// Writes what is at `from` as an archive whose members are below `name`, or below nothing if
/// that is empty. Owners are root unless they are to be kept. Sockets are left out.
pub fn pack(
    from: &Path,
    follow: bool,
    name: &[u8],
    owners: bool,
    to: impl Write,
) -> io::Result<()> {
    let mut packing = Packing {
        archive: Builder::new(BufWriter::with_capacity(BUFFER, to)),
        owners,
        linked: HashMap::new(),
    };
    let metadata = match follow {
        true => fs::metadata(from)?,
        false => fs::symlink_metadata(from)?,
    };
    let mut left = vec![(
        from.to_owned(),
        PathBuf::from(OsStr::from_bytes(name)),
        metadata,
    )];
    while let Some((path, name, metadata)) = left.pop() {
        let at =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        if !metadata.is_dir() {
            packing.one(&path, &name, &metadata).map_err(at)?;
            continue;
        }
        if name != Path::new("") {
            packing.one(&path, &name, &metadata).map_err(at)?;
        }
        let entries = fs::read_dir(&path).map_err(at)?;
        let mut entries = entries.collect::<io::Result<Vec<_>>>().map_err(at)?;
        // The last one is taken first.
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.file_name()));
        for entry in entries {
            let metadata = entry.metadata().map_err(at)?;
            left.push((entry.path(), name.join(entry.file_name()), metadata));
        }
    }
    packing.archive.into_inner()?.flush()
}

struct Packing<W: Write> {
    archive: Builder<W>,
    owners: bool,
    /// First names of files that have several, by device and inode.
    linked: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Packing<W> {
    fn one(&mut self, path: &Path, name: &Path, metadata: &Metadata) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_mode(metadata.mode() & 0o7777);
        header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
        header.set_size(0);
        if self.owners {
            header.set_uid(metadata.uid().into());
            header.set_gid(metadata.gid().into());
        } else {
            header.set_uid(0);
            header.set_gid(0);
        }
        let kind = metadata.file_type();
        if metadata.is_dir() {
            header.set_entry_type(EntryType::Directory);
            return self.archive.append_data(&mut header, name, io::empty());
        }
        if metadata.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            return self
                .archive
                .append_link(&mut header, name, fs::read_link(path)?);
        }
        if metadata.nlink() > 1 {
            let file = (metadata.dev(), metadata.ino());
            if let Some(first) = self.linked.get(&file) {
                header.set_entry_type(EntryType::Link);
                return self.archive.append_link(&mut header, name, first);
            }
            self.linked.insert(file, name.to_owned());
        }
        if metadata.is_file() {
            header.set_entry_type(EntryType::Regular);
            // It may be longer or shorter by now; the archive can't say so any more.
            let file = File::open(path)?;
            let size = file.metadata()?.len();
            header.set_size(size);
            let contents = file.take(size).chain(io::repeat(0)).take(size);
            return self.archive.append_data(&mut header, name, contents);
        }
        let kind = match () {
            () if kind.is_fifo() => EntryType::Fifo,
            () if kind.is_char_device() => EntryType::Char,
            () if kind.is_block_device() => EntryType::Block,
            () => return Ok(()),
        };
        header.set_entry_type(kind);
        let device = metadata.rdev();
        header.set_device_major(rustix::fs::major(device))?;
        header.set_device_minor(rustix::fs::minor(device))?;
        self.archive.append_data(&mut header, name, io::empty())
    }
}
