//! Bytes and entries of an operation that goes on.

use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use micabox_error::Error;
use micabox_operations::DirectoryEntry;
use micabox_wire::files::FileReply;
use micabox_wire::read_message;

use super::Operation;
use crate::{Output, Stdin};

/// Bytes of entries that are read at a time.
const PIECE: usize = 64 << 10;

/// A file that is being read. Its end is reported only if all of it has arrived.
#[derive(Debug)]
pub struct FileReader {
    /// None after the end.
    output: Option<Output>,
    operation: Operation,
}

/// A file that is being written. A write blocks while the sandbox does not take the bytes. Dropping
/// it leaves what was written by then.
#[derive(Debug)]
pub struct FileWriter {
    stdin: Stdin,
    operation: Operation,
}

/// The files in a directory.
#[derive(Debug)]
pub struct Entries {
    /// None after the end.
    output: Option<BufReader<Output>>,
    operation: Operation,
}

impl FileReader {
    pub(super) fn new(mut operation: Operation) -> Result<Self, Error> {
        Ok(Self {
            output: Some(operation.process.stdout.take().ok_or(Error::BadReply)?),
            operation,
        })
    }
}

impl Read for FileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(output) = &mut self.output else {
            return Ok(0);
        };
        let count = output.read(buffer)?;
        if count == 0 && !buffer.is_empty() {
            self.output = None;
            self.operation.end()?;
        }
        Ok(count)
    }
}

impl FileWriter {
    pub(super) fn new(mut operation: Operation) -> Result<Self, Error> {
        Ok(Self {
            stdin: operation.process.stdin.take().ok_or(Error::BadReply)?,
            operation,
        })
    }

    /// Ends the file, and waits until all of it is written in the sandbox.
    ///
    /// # Errors
    /// [`Error::File`]: why it could not be written; [`Error::Lost`] if the sandbox ended first.
    pub fn finish(mut self) -> Result<(), Error> {
        drop(self.stdin);
        self.operation.end().map(drop)
    }
}

impl Write for FileWriter {
    /// Fails with `BrokenPipe` after a failure inside, which [`FileWriter::finish`] explains.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.stdin.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for FileWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stdin.as_fd()
    }
}

impl Entries {
    pub(super) fn new(mut operation: Operation) -> Result<Self, Error> {
        let output = operation.process.stdout.take().ok_or(Error::BadReply)?;
        Ok(Self {
            output: Some(BufReader::with_capacity(PIECE, output)),
            operation,
        })
    }
}

impl Iterator for Entries {
    type Item = Result<DirectoryEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let reply = read_message(self.output.as_mut()?);
        let entry = match reply {
            Ok(Some(FileReply::Entry(entry))) => DirectoryEntry::new(entry),
            Ok(None) => {
                self.output = None;
                return self.operation.end().err().map(Err);
            }
            Ok(Some(_)) | Err(_) => Err(Error::BadReply),
        };
        if entry.is_err() {
            self.output = None;
        }
        Some(entry)
    }
}
