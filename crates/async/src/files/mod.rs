//! The files of a running sandbox, as programs inside see them.

mod operation;
mod replies;
mod stream;
mod watch;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use micabox::{Attributes, DirectoryEntry, Error, Existing, FileStat, WriteOptions};
use micabox_operations::{FILE_ANSWER_TIMEOUT, FileTask, bytes, from_bytes};
use micabox_wire::files::{FileReply, FileRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::link::Link;
use operation::{Ends, Operation};

pub use replies::{Entries, Replies};
pub use stream::{FileReader, FileWriter, FilesWriter};
pub use watch::Watch;

/// Most bytes of a file that [`Files::read`] returns.
const MAX_READ: u64 = 256 << 20;

/// The files of a running sandbox, as a user of it: as [`micabox::Files`], which has the rules.
///
/// ```no_run
/// # async fn example(sandbox: micabox_async::Sandbox) -> Result<(), micabox::Error> {
/// let files = sandbox.files().as_user("1000");
/// files.write("/tmp/greeting", b"hello\n").await?;
/// let mut watch = files.watch("/tmp", true).await?;
/// while let Some(event) = watch.next().await {
///     println!("{:?}", event?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Files {
    link: Arc<Link>,
    user: String,
    answer_timeout: Duration,
}

impl Files {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: Arc::clone(link),
            user: String::new(),
            answer_timeout: FILE_ANSWER_TIMEOUT,
        }
    }

    /// Returns the same files as another user: `name`, `uid`, `name:group` and so on, looked up in
    /// the sandbox.
    #[must_use]
    pub fn as_user(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    /// Sets how long the sandbox may be silent while an operation waits for it: five minutes unless set.
    /// Then the operation fails with [`Error::Silent`]. A watch has no limit.
    #[must_use]
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// Reads a whole file of at most 256 MiB. [`Files::open`] has no limit.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::DoesNotRun`].
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let reader = self.open(path).await?;
        let task = reader.task().clone();
        let mut bytes = Vec::new();
        let read = reader.take(MAX_READ + 1).read_to_end(&mut bytes).await;
        read.map_err(|error| task.of_stream(error))?;
        if bytes.len() as u64 > MAX_READ {
            return Err(task.error(ErrorKind::FileTooLarge.into()));
        }
        Ok(bytes)
    }

    /// Opens a file for reading, from its start to its end.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn open(&self, path: impl AsRef<Path>) -> Result<FileReader, Error> {
        self.open_range(path, 0, None).await
    }

    /// Opens a file for reading from the byte `offset` on, for at most `length` bytes.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn open_range(
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
        let operation = self.start("reading", path, &request, Ends::OUT).await?;
        FileReader::new(operation)
    }

    /// Makes `contents` a file's contents. A new file has mode 0644.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn write(&self, path: impl AsRef<Path>, contents: &[u8]) -> Result<(), Error> {
        self.write_with(path, contents, WriteOptions::default())
            .await
    }

    /// Adds `contents` to the end of a file, which is made if missing.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn append(&self, path: impl AsRef<Path>, contents: &[u8]) -> Result<(), Error> {
        let options = WriteOptions {
            existing: Existing::Append,
            ..WriteOptions::default()
        };
        self.write_with(path, contents, options).await
    }

    /// Writes `contents` to a file.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn write_with(
        &self,
        path: impl AsRef<Path>,
        contents: &[u8],
        options: WriteOptions,
    ) -> Result<(), Error> {
        let mut writer = self.create(path, options).await?;
        // The end has the better reason.
        let _ = writer.write_all(contents).await;
        writer.finish().await
    }

    /// Opens a file for writing. Its shutdown, or [`FileWriter::finish`], says whether all has been
    /// written.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn create(
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
        let operation = self.start("writing", path, &request, Ends::IN).await?;
        FileWriter::new(operation)
    }

    /// Begins to write files, one after the other, in one operation.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn create_many(&self, options: WriteOptions) -> Result<FilesWriter, Error> {
        let request = FileRequest::WriteMany {
            existing: options.existing,
            mode: options.mode,
            parents: options.parents,
        };
        let operation = self.start("writing", Path::new(""), &request, Ends::IN);
        FilesWriter::new(operation.await?)
    }

    /// Returns a file's attributes. Symbolic links are followed.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn stat(&self, path: impl AsRef<Path>) -> Result<FileStat, Error> {
        self.stat_with(path.as_ref(), true).await
    }

    /// Returns a file's attributes, or a symbolic link's own.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn stat_link(&self, path: impl AsRef<Path>) -> Result<FileStat, Error> {
        self.stat_with(path.as_ref(), false).await
    }

    async fn stat_with(&self, path: &Path, follow: bool) -> Result<FileStat, Error> {
        let request = FileRequest::Stat {
            path: bytes(path),
            follow,
        };
        match self.ask("looking at", path, &request).await? {
            FileReply::Stat(stat) => Ok(stat),
            _ => Err(Error::BadReply),
        }
    }

    /// Returns whether there is a file at a path, symbolic links followed.
    ///
    /// # Errors
    /// As [`Files::read`], if that can't be known.
    pub async fn exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(Error::File { source, .. }) if is_missing(&source) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists the files in a directory, `depth` levels deep; 1 for its own entries. Names are in the
    /// order of their bytes, and a directory comes before what is in it.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn list(
        &self,
        path: impl AsRef<Path>,
        depth: u32,
    ) -> Result<Vec<DirectoryEntry>, Error> {
        let mut entries = self.entries(path, depth).await?;
        let mut all = Vec::new();
        while let Some(entry) = entries.next().await {
            all.push(entry?);
        }
        Ok(all)
    }

    /// Lists files as [`Files::list`] does, one by one.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn entries(&self, path: impl AsRef<Path>, depth: u32) -> Result<Entries, Error> {
        let path = path.as_ref();
        let request = FileRequest::List {
            path: bytes(path),
            depth,
        };
        let operation = self.start("listing", path, &request, Ends::OUT).await?;
        Entries::new(operation, |reply| match reply {
            FileReply::Entry(entry) => DirectoryEntry::new(entry),
            _ => Err(Error::BadReply),
        })
    }

    /// Watches a file, or the entries of a directory; `recursive`, everything below it. See
    /// [`micabox::Files::watch`].
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn watch(&self, path: impl AsRef<Path>, recursive: bool) -> Result<Watch, Error> {
        let path = path.as_ref();
        let request = FileRequest::Watch {
            path: bytes(path),
            recursive,
        };
        Watch::new(self.start("watching", path, &request, Ends::BOTH).await?)
    }

    /// Makes a directory with mode 0755. With `parents`, missing parents are made too, and an
    /// existing directory is no error.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn make_directory(&self, path: impl AsRef<Path>, parents: bool) -> Result<(), Error> {
        let path = path.as_ref();
        let request = FileRequest::MakeDirectory {
            path: bytes(path),
            mode: 0o755,
            parents,
        };
        self.perform("making the directory", path, &request).await
    }

    /// Removes a file or an empty directory; `recursive`, a directory with everything below it.
    /// Symbolic links are not followed.
    ///
    /// # Errors
    /// As [`Files::read`]. A part may have been removed then.
    pub async fn remove(&self, path: impl AsRef<Path>, recursive: bool) -> Result<(), Error> {
        let path = path.as_ref();
        let request = FileRequest::Remove {
            path: bytes(path),
            recursive,
        };
        self.perform("removing", path, &request).await
    }

    /// Gives a file another path in its filesystem. A file that is there is replaced, with `replace`;
    /// otherwise it is an error.
    ///
    /// # Errors
    /// As [`Files::read`]; the path in the error is `from`.
    pub async fn rename(
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
        self.perform("renaming", from.as_ref(), &request).await
    }

    /// Makes a symbolic link at `path` that says `target`.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn symlink(
        &self,
        target: impl AsRef<Path>,
        path: impl AsRef<Path>,
    ) -> Result<(), Error> {
        let request = FileRequest::Symlink {
            target: bytes(target.as_ref()),
            path: bytes(path.as_ref()),
        };
        self.perform("linking", path.as_ref(), &request).await
    }

    /// Gives a file a second name, `path`. A symbolic link at the end of `file` is not followed.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn hard_link(
        &self,
        file: impl AsRef<Path>,
        path: impl AsRef<Path>,
    ) -> Result<(), Error> {
        let request = FileRequest::HardLink {
            file: bytes(file.as_ref()),
            path: bytes(path.as_ref()),
        };
        self.perform("linking", path.as_ref(), &request).await
    }

    /// Returns what a symbolic link says.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let path = path.as_ref();
        let request = FileRequest::ReadLink { path: bytes(path) };
        match self.ask("reading the link", path, &request).await? {
            FileReply::Target { target } => Ok(from_bytes(target)),
            _ => Err(Error::BadReply),
        }
    }

    /// Returns the path without symbolic links that leads to the same file.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn resolve(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let path = path.as_ref();
        let request = FileRequest::Resolve { path: bytes(path) };
        match self.ask("following the links of", path, &request).await? {
            FileReply::Target { target } => Ok(from_bytes(target)),
            _ => Err(Error::BadReply),
        }
    }

    /// Sets a file's attributes.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub async fn set(&self, path: impl AsRef<Path>, attributes: Attributes) -> Result<(), Error> {
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
            .await
    }

    /// Performs an operation without a reply.
    async fn perform(
        &self,
        what: &'static str,
        path: &Path,
        request: &FileRequest,
    ) -> Result<(), Error> {
        self.start(what, path, request, Ends::NONE)
            .await?
            .end()
            .await
    }

    /// Performs an operation with one reply.
    async fn ask(
        &self,
        what: &'static str,
        path: &Path,
        request: &FileRequest,
    ) -> Result<FileReply, Error> {
        let mut operation = self.start(what, path, request, Ends::OUT).await?;
        let reply = operation.reply().await;
        operation.end().await?;
        reply.ok_or(Error::BadReply)
    }

    /// Begins an operation.
    async fn start(
        &self,
        what: &'static str,
        path: &Path,
        request: &FileRequest,
        ends: Ends,
    ) -> Result<Operation, Error> {
        let task = FileTask::new(what, path);
        let exec = FileTask::exec(request, &self.user, self.answer_timeout);
        Operation::start(&self.link, task, exec, ends).await
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
