//! Bytes of files, as tokio's streams.

use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use micabox::Error;
use micabox_operations::{FileTask, bytes};
use micabox_wire::encode;
use micabox_wire::files::FilePiece;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::operation::{Ending, Operation};
use crate::{Output, Stdin};

/// Bytes of small files that are sent at a time.
const BATCH: usize = 64 << 10;

/// A file that is being read. Its end is reported only if all of it has arrived. An error in it has an
/// [`Error`] inside ([`io::Error::downcast`]).
#[derive(Debug)]
pub struct FileReader {
    /// None after the end.
    output: Option<Output>,
    ending: Ending,
}

/// A file that is being written. A write waits while the sandbox does not take the bytes, and fails with
/// [`io::ErrorKind::BrokenPipe`] after a failure inside, which the shutdown explains. Dropping it leaves
/// what was written by then.
#[derive(Debug)]
pub struct FileWriter {
    stdin: Stdin,
    ending: Ending,
}

impl FileReader {
    pub(super) fn new(mut operation: Operation) -> Result<Self, Error> {
        Ok(Self {
            output: Some(operation.process.stdout.take().ok_or(Error::BadReply)?),
            ending: operation.into(),
        })
    }

    pub(super) fn task(&self) -> &FileTask {
        self.ending.task()
    }
}

impl AsyncRead for FileReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(output) = &mut self.output {
            let room = buffer.remaining();
            let read = ready!(Pin::new(output).poll_read(context, buffer));
            if read.is_ok() && buffer.remaining() < room {
                return Poll::Ready(Ok(()));
            }
            // The operation has the reason of an early end.
            self.output = None;
        }
        self.ending.poll(context).map_err(io::Error::from)
    }
}

impl FileWriter {
    pub(super) fn new(mut operation: Operation) -> Result<Self, Error> {
        Ok(Self {
            stdin: operation.process.stdin.take().ok_or(Error::BadReply)?,
            ending: operation.into(),
        })
    }

    /// Ends the file, and waits until all of it is written in the sandbox: as its shutdown, with the
    /// error itself.
    ///
    /// # Errors
    /// [`Error::File`]: why it could not be written; [`Error::Lost`] if the sandbox ended first.
    pub async fn finish(mut self) -> Result<(), Error> {
        self.stdin.end();
        poll_fn(|context| self.ending.poll(context)).await
    }
}

impl AsyncWrite for FileWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stdin).poll_write(context, data)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stdin.end();
        self.ending.poll(context).map_err(io::Error::from)
    }
}

/// Writes files, one after the other, in one operation.
///
/// A failure inside ends it: [`FilesWriter::finish`] explains it, and files that came before are written. So they are
/// if it is finished early; dropping it leaves what was written by then.
#[derive(Debug)]
pub struct FilesWriter {
    writer: FileWriter,
    /// What is not sent yet.
    batch: Vec<u8>,
}

impl FilesWriter {
    pub(super) fn new(operation: Operation) -> Result<Self, Error> {
        Ok(Self {
            writer: FileWriter::new(operation)?,
            batch: Vec::new(),
        })
    }

    /// Begins a file, whose contents begin with `data`.
    ///
    /// # Errors
    /// As writing to a [`FileWriter`]; [`io::ErrorKind::InvalidInput`] if the path is too long.
    pub async fn begin(&mut self, path: impl AsRef<Path>, data: &[u8]) -> io::Result<()> {
        self.put(bytes(path.as_ref()), data, false).await
    }

    /// Goes on with the file that was begun last.
    ///
    /// # Errors
    /// As [`FilesWriter::begin`].
    pub async fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.put(Vec::new(), data, true).await
    }

    async fn put(&mut self, path: Vec<u8>, data: &[u8], continues: bool) -> io::Result<()> {
        let piece = FilePiece {
            path,
            size: data.len() as u64,
            continues,
        };
        encode(&piece, &mut self.batch)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.batch.extend_from_slice(data);
        if self.batch.len() >= BATCH {
            self.send().await?;
        }
        Ok(())
    }

    async fn send(&mut self) -> io::Result<()> {
        let sent = self.writer.write_all(&self.batch).await;
        self.batch.clear();
        sent
    }

    /// Waits until all files are written in the sandbox.
    ///
    /// # Errors
    /// As [`FileWriter::finish`], about the first file that could not be written.
    pub async fn finish(mut self) -> Result<(), Error> {
        // The end has the reason.
        let _ = self.send().await;
        self.writer.finish().await
    }
}
