//! The files of a running sandbox, as programs inside see them. The sandbox's agent does the work, so
//! the image needs no program for it.

mod archive;
#[cfg(test)]
mod fake_owner;
mod link;
mod operation;
mod shared;
mod stream;
mod watch;

use std::io;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use micabox_error::Error;
use micabox_operations::{
    Attributes, FILE_ANSWER_TIMEOUT, FileTask, Stdio, WriteOptions, bytes, from_bytes,
};
use micabox_wire::files::{Existing, FileReply, FileRequest, FileStat};

use crate::{Sandbox, SandboxRef};

pub(crate) use operation::{Ends, Operation};
pub(crate) use shared::Shared;
pub use stream::{Entries, FileReader, FileWriter};
pub use watch::Watch;

/// Most bytes of a file that [`Files::read`] returns.
const MAX_READ: u64 = 256 << 20;

/// The files of a running sandbox, as a user of it.
///
/// Paths are from the sandbox's root. Symbolic links in them lead where they lead inside, and never
/// out of the sandbox; the kernel's own links in `/proc`, such as `/proc/self/exe`, are not
/// followed. An operation that fails returns [`Error::File`] with the system's reason. What the
/// guest tells about its files is its own account.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let sandbox: micabox::Sandbox = unimplemented!();
/// let files = sandbox.files().as_user("1000");
/// files.write("/tmp/greeting", b"hello\n")?;
/// for entry in files.list("/tmp", 1)? {
///     println!("{}", entry?.path.display());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Files {
    /// The directory of the sandbox's state.
    directory: PathBuf,
    name: String,
    user: String,
    answer_timeout: Duration,
    /// The connection of operations that are over with their call. What is held (a reader, a writer, a list, a
    /// watch) has one of its own.
    shared: Arc<Shared>,
}

impl Sandbox {
    /// Returns the sandbox's files, as root.
    pub fn files(&self) -> Files {
        Files::new(self.directory(), &self.record().name, self.shared())
    }
}

impl SandboxRef {
    /// Returns the sandbox's files, as root. The sandbox must run when they are used.
    pub fn files(&self) -> Files {
        Files::new(self.path(), &self.record().name, self.shared())
    }
}

impl Files {
    pub(crate) fn new(directory: &Path, name: &str, shared: &Arc<Shared>) -> Self {
        Self {
            directory: directory.to_owned(),
            name: name.to_owned(),
            user: String::new(),
            answer_timeout: FILE_ANSWER_TIMEOUT,
            shared: Arc::clone(shared),
        }
    }

    /// Returns the same files as another user: `name`, `uid`, `name:group` and so on, looked up in
    /// the sandbox.
    #[must_use]
    pub fn as_user(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    /// Sets how long the sandbox may be silent during an operation while this process waits for it:
    /// five minutes unless set. Then the operation fails with [`Error::Silent`]. A watch has no limit.
    #[must_use]
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// Reads a whole file of at most 256 MiB. [`Files::open`] has no limit.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::DoesNotRun`].
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let path = path.as_ref();
        let mut bytes = Vec::new();
        let mut reader = self.open(path)?.take(MAX_READ + 1);
        let read = reader.read_to_end(&mut bytes);
        let task = FileTask::new("reading", path);
        read.map_err(|error| task.of_stream(error))?;
        if bytes.len() as u64 > MAX_READ {
            return Err(task.error(io::ErrorKind::FileTooLarge.into()));
        }
        Ok(bytes)
    }

    /// Opens a file for reading, from its start to its end.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<FileReader, Error> {
        self.open_range(path, 0, None)
    }

    /// Opens a file for reading from the byte `offset` on, for at most `length` bytes.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn open_range(
        &self,
        path: impl AsRef<Path>,
        offset: u64,
        length: Option<u64>,
    ) -> Result<FileReader, Error> {
        let path = path.as_ref();
        let request = FileRequest::Read {
            path: bytes(path),
            offset,
            length,
        };
        let ends = Ends {
            stdout: Stdio::Piped,
            ..Ends::default()
        };
        self.start("reading", path, &request, ends)
            .and_then(FileReader::new)
    }

    /// Makes `contents` a file's contents. A new file has mode 0644.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn write(&self, path: impl AsRef<Path>, contents: &[u8]) -> Result<(), Error> {
        self.write_with(path, contents, WriteOptions::default())
    }

    /// Adds `contents` to the end of a file, which is made if missing.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn append(&self, path: impl AsRef<Path>, contents: &[u8]) -> Result<(), Error> {
        let options = WriteOptions {
            existing: Existing::Append,
            ..WriteOptions::default()
        };
        self.write_with(path, contents, options)
    }

    /// Writes `contents` to a file.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn write_with(
        &self,
        path: impl AsRef<Path>,
        contents: &[u8],
        options: WriteOptions,
    ) -> Result<(), Error> {
        let mut writer = self.create(path, options)?;
        // The end has the better reason.
        let _ = writer.write_all(contents);
        writer.finish()
    }

    /// Opens a file for writing. [`FileWriter::finish`] says whether all has been written.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn create(
        &self,
        path: impl AsRef<Path>,
        options: WriteOptions,
    ) -> Result<FileWriter, Error> {
        let path = path.as_ref();
        let request = FileRequest::Write {
            path: bytes(path),
            existing: options.existing,
            mode: options.mode,
            parents: options.parents,
        };
        let ends = Ends {
            stdin: Stdio::Piped,
            ..Ends::default()
        };
        self.start("writing", path, &request, ends)
            .and_then(FileWriter::new)
    }

    /// Returns a file's attributes. Symbolic links are followed.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<FileStat, Error> {
        self.stat_with(path.as_ref(), true)
    }

    /// Returns a file's attributes, or a symbolic link's own.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn stat_link(&self, path: impl AsRef<Path>) -> Result<FileStat, Error> {
        self.stat_with(path.as_ref(), false)
    }

    fn stat_with(&self, path: &Path, follow: bool) -> Result<FileStat, Error> {
        let request = FileRequest::Stat {
            path: bytes(path),
            follow,
        };
        match self.ask("looking at", path, &request)? {
            FileReply::Stat(stat) => Ok(stat),
            _ => Err(Error::BadReply),
        }
    }

    /// Returns whether there is a file at a path, symbolic links followed.
    ///
    /// # Errors
    /// As [`Files::read`], if that can't be known.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        match self.stat(path) {
            Ok(_) => Ok(true),
            Err(Error::File { source, .. })
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Lists the files in a directory, `depth` levels deep; 1 for its own entries. Names are in the
    /// order of their bytes, and a directory comes before what is in it.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn list(&self, path: impl AsRef<Path>, depth: u32) -> Result<Entries, Error> {
        let path = path.as_ref();
        let request = FileRequest::List {
            path: bytes(path),
            depth,
        };
        let ends = Ends {
            stdout: Stdio::Piped,
            ..Ends::default()
        };
        self.start("listing", path, &request, ends)
            .and_then(Entries::new)
    }

    /// Makes a directory with mode 0755. With `parents`, missing parents are made too, and an
    /// existing directory is no error.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn make_directory(&self, path: impl AsRef<Path>, parents: bool) -> Result<(), Error> {
        let path = path.as_ref();
        let request = FileRequest::MakeDirectory {
            path: bytes(path),
            mode: 0o755,
            parents,
        };
        self.perform("making the directory", path, &request)
    }

    /// Removes a file or an empty directory; `recursive`, a directory with everything below it.
    /// Symbolic links are not followed.
    ///
    /// # Errors
    /// As [`Files::read`]. A part may have been removed then.
    pub fn remove(&self, path: impl AsRef<Path>, recursive: bool) -> Result<(), Error> {
        let path = path.as_ref();
        let request = FileRequest::Remove {
            path: bytes(path),
            recursive,
        };
        self.perform("removing", path, &request)
    }

    /// Gives a file another path in its filesystem. A file that is there is replaced, with `replace`;
    /// otherwise it is an error.
    ///
    /// # Errors
    /// As [`Files::read`]; the path in the error is `from`.
    pub fn rename(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        replace: bool,
    ) -> Result<(), Error> {
        let request = FileRequest::Rename {
            from: bytes(from.as_ref()),
            to: bytes(to.as_ref()),
            replace,
        };
        self.perform("renaming", from.as_ref(), &request)
    }

    /// Makes a symbolic link at `path` that says `target`.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<(), Error> {
        let request = FileRequest::Symlink {
            target: bytes(target.as_ref()),
            path: bytes(path.as_ref()),
        };
        self.perform("linking", path.as_ref(), &request)
    }

    /// Gives a file a second name, `path`. A symbolic link at the end of `file` is not followed.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn hard_link(&self, file: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<(), Error> {
        let request = FileRequest::HardLink {
            file: bytes(file.as_ref()),
            path: bytes(path.as_ref()),
        };
        self.perform("linking", path.as_ref(), &request)
    }

    /// Returns what a symbolic link says.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let path = path.as_ref();
        let request = FileRequest::ReadLink { path: bytes(path) };
        match self.ask("reading the link", path, &request)? {
            FileReply::Target { target } => Ok(from_bytes(target)),
            _ => Err(Error::BadReply),
        }
    }

    /// Returns the path without symbolic links that leads to the same file.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn resolve(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let path = path.as_ref();
        let request = FileRequest::Resolve { path: bytes(path) };
        match self.ask("following the links of", path, &request)? {
            FileReply::Target { target } => Ok(from_bytes(target)),
            _ => Err(Error::BadReply),
        }
    }

    /// Sets a file's attributes.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn set(&self, path: impl AsRef<Path>, attributes: Attributes) -> Result<(), Error> {
        let path = path.as_ref();
        let request = FileRequest::Set {
            path: bytes(path),
            follow: !attributes.of_link,
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            accessed: attributes.accessed,
            modified: attributes.modified,
        };
        self.perform("setting the attributes of", path, &request)
    }

    /// Sets a file's permission bits.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u16) -> Result<(), Error> {
        let attributes = Attributes {
            mode: Some(mode),
            ..Attributes::default()
        };
        self.set(path, attributes)
    }

    /// Sets a file's owner and group, by number.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn set_owner(&self, path: impl AsRef<Path>, uid: u32, gid: u32) -> Result<(), Error> {
        let attributes = Attributes {
            uid: Some(uid),
            gid: Some(gid),
            ..Attributes::default()
        };
        self.set(path, attributes)
    }

    /// Sets the times of a file's last access and of the last change of its contents.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: SystemTime,
        modified: SystemTime,
    ) -> Result<(), Error> {
        let attributes = Attributes {
            accessed: Some(accessed.into()),
            modified: Some(modified.into()),
            ..Attributes::default()
        };
        self.set(path, attributes)
    }
}
