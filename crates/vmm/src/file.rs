//! The files of a machine: open descriptors, and what describes them to another process.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, fcntl_getfl};
use serde::{Deserialize, Serialize};

use crate::Error;

/// A regular file that a machine uses. It is open: whatever happens to its name, the machine gets
/// the file that was checked. Clones share the descriptor.
#[derive(Clone)]
pub struct MachineFile {
    file: Arc<File>,
    length: u64,
    path: PathBuf,
    part: Option<Part>,
}

/// A file that a process serves, because only a part of it is here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The server, by a name that [`PartServers::connect`](crate::PartServers::connect) knows.
    pub server: String,
    /// The number of the file there.
    pub number: u32,
    /// Whether the descriptor is read as that of any file, because it is FUSE's. Otherwise it is the sparse file, of
    /// which nothing may be read that was not asked for.
    pub is_readable: bool,
}

/// A [`MachineFile`] as a process sees it that gets the descriptor from another one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileRef {
    /// The descriptor's number, by an agreement of the two processes.
    pub number: RawFd,
    /// The file's length in bytes when it was opened.
    pub length: u64,
    /// The path at which it was opened.
    pub name: String,
    /// What serves it, if only a part of it is here.
    pub part: Option<Part>,
}

impl MachineFile {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`Error::File`] if there is none, if it can't be opened, or if it is not a regular file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_with(path, File::options().read(true))
    }

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// As [`MachineFile::open`].
    pub fn open_for_writing(path: &Path) -> Result<Self, Error> {
        Self::open_with(path, File::options().read(true).write(true))
    }

    fn open_with(path: &Path, options: &mut std::fs::OpenOptions) -> Result<Self, Error> {
        // A FIFO without a writer is opened and refused, not waited for. To a regular file it means
        // something only if another process has a lease on it (`F_SETLEASE`).
        let mut opened = options.custom_flags(libc::O_NONBLOCK).open(path);
        if matches!(&opened, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            opened = options.custom_flags(0).open(path);
        }
        let file = opened.map_err(|error| failed(path, error.to_string()))?;
        Self::new(file, path)
    }

    /// Takes an open file. `path` is where it was opened.
    ///
    /// # Errors
    /// As [`MachineFile::open`].
    pub fn new(file: File, path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let metadata = file
            .metadata()
            .map_err(|error| failed(&path, error.to_string()))?;
        if !metadata.is_file() {
            return Err(failed(&path, "it is not a regular file".into()));
        }
        Ok(Self {
            file: Arc::new(file),
            length: metadata.len(),
            path,
            part: None,
        })
    }

    /// Takes a file that another process has opened and described.
    pub fn received(file: File, description: FileRef) -> Self {
        Self {
            file: Arc::new(file),
            length: description.length,
            path: description.name.into(),
            part: description.part,
        }
    }

    /// Describes the file to a process that gets its descriptor as `number`.
    pub fn describe(&self, number: RawFd) -> FileRef {
        FileRef {
            number,
            length: self.length,
            name: self.path.display().to_string(),
            part: self.part.clone(),
        }
    }

    /// Returns the same file, as one that is served.
    #[must_use]
    pub fn in_part(self, part: Option<Part>) -> Self {
        Self { part, ..self }
    }

    /// Returns what serves the file, if only a part of it is here.
    pub fn part(&self) -> Option<&Part> {
        self.part.as_ref()
    }

    /// Opens the same file once more, with the same access: the result has locks and an offset of
    /// its own.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn reopen(&self) -> Result<Self, Error> {
        let again = || -> io::Result<File> {
            let access = fcntl_getfl(&self.file)? & OFlags::RWMODE;
            reopen(&self.file, access)
        };
        let file = again().map_err(|error| failed(&self.path, error.to_string()))?;
        Ok(Self {
            file: Arc::new(file),
            ..self.clone()
        })
    }

    /// Returns the open file. Others share its offset.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Returns the file's length in bytes when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the path at which the file was opened, for messages: another file may be there by
    /// now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an error about the file.
    pub(crate) fn failed(&self, why: String) -> Error {
        failed(&self.path, why)
    }

    /// Returns the descriptor's number in this process.
    pub(crate) fn number(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Shows path and length, which are the same in every process.
impl fmt::Debug for MachineFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineFile")
            .field("path", &self.path)
            .field("length", &self.length)
            .finish()
    }
}

/// Opens an open file once more.
pub(crate) fn reopen(file: &File, access: OFlags) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn failed(path: &Path, why: String) -> Error {
    Error::File {
        path: path.to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{remove_file, rename, write};
    use std::os::unix::fs::FileExt;

    fn contents(file: &MachineFile) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(file.length()).unwrap()];
        file.file().read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn a_file_stays_the_one_that_was_opened() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["file", "other"].map(|name| dir.path().join(name));
        write(&path, "first").unwrap();
        write(&other, "another").unwrap();
        let file = MachineFile::open(&path).unwrap();
        rename(&other, &path).unwrap();
        let again = file.reopen().unwrap();
        remove_file(&path).unwrap();
        let received = MachineFile::received(
            file.file().try_clone().unwrap(),
            serde_json::from_str(&serde_json::to_string(&file.describe(7)).unwrap()).unwrap(),
        );
        for file in [&file, &again, &received] {
            assert_eq!((contents(file), file.path()), (b"first".to_vec(), &*path));
        }
    }

    #[test]
    fn another_opening_has_the_same_access_and_locks_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, "x").unwrap();
        let writable = MachineFile::open_for_writing(&path).unwrap();
        let again = writable.reopen().unwrap();
        again.file().write_all_at(b"y", 0).unwrap();
        let read_only = MachineFile::open(&path).unwrap().reopen().unwrap();
        read_only.file().write_all_at(b"z", 0).unwrap_err();
        again.file().try_lock().unwrap();
        writable.file().try_lock().unwrap_err();
    }

    #[test]
    fn a_path_that_is_not_a_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        for path in [&fifo, Path::new("/dev/null"), dir.path()] {
            let error = MachineFile::open(path).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
        MachineFile::open(&dir.path().join("none")).unwrap_err();
    }
}
