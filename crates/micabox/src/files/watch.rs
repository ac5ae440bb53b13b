//! Changes of files, as they happen.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use micabox_error::Error;
use micabox_operations::{FILE_ANSWER_TIMEOUT, FileEvent, Stdio, bytes};
use micabox_owner::Lost;
use micabox_wire::Decoder;
use micabox_wire::files::{FileReply, FileRequest};

use super::{Ends, Files, Operation};
use crate::Output;

/// Bytes of events that are read at a time.
const PIECE: usize = 64 << 10;

/// The changes of a file or directory, from [`Files::watch`]. Ends when what is watched is removed.
/// Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    /// None after the end.
    output: Option<Output>,
    decoder: Decoder<FileReply>,
    operation: Operation,
    /// Changes that came and were not returned yet.
    early: VecDeque<FileEvent>,
}

/// What a watch says.
enum Next {
    Event(FileEvent),
    /// All that had changed when it was asked has been said.
    Told,
    End,
    /// Nothing until the deadline.
    Late,
}

impl Files {
    /// Watches a file, or the entries of a directory; `recursive`, everything below it. All changes
    /// after this call are reported, in order, those of directories made meanwhile included, whose
    /// first entries may be reported twice. [`FileChange::Overflow`](crate::FileChange::Overflow) says that some are missing. The
    /// guest's kernel reports what programs inside and [`Files`] change; not writes through mmap(2).
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn watch(&self, path: impl AsRef<Path>, recursive: bool) -> Result<Watch, Error> {
        let path = path.as_ref();
        let request = FileRequest::Watch {
            path: bytes(path),
            recursive,
        };
        let ends = Ends {
            stdin: Stdio::Piped,
            stdout: Stdio::Piped,
        };
        let mut operation = self.start("watching", path, &request, ends)?;
        let output = operation.process.stdout.take().ok_or(Error::BadReply)?;
        Ok(Watch {
            output: Some(output),
            decoder: Decoder::new(),
            operation,
            early: VecDeque::new(),
        })
    }
}

impl Watch {
    /// Waits for the next change for at most `timeout`; None if there is none.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Lost`]; [`Error::BadReply`] if the guest sends something else.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<FileEvent>, Error> {
        // A deadline beyond the clock's range means none.
        self.next_until(Instant::now().checked_add(timeout))
    }

    /// Returns all changes that no call has returned yet: those that were made before this call are among
    /// them.
    ///
    /// # Errors
    /// As [`Watch::next_within`]; [`Error::Silent`] if the sandbox does not answer.
    pub fn so_far(&mut self) -> Result<Vec<FileEvent>, Error> {
        if let Some(stdin) = self.operation.process.stdin.as_mut() {
            // One that has ended has no reader, and then its end.
            let _ = stdin.write_all(&[0]);
        }
        let deadline = Instant::now().checked_add(FILE_ANSWER_TIMEOUT);
        loop {
            match self.checked(deadline)? {
                Next::Event(event) => self.early.push_back(event),
                Next::Told | Next::End => return Ok(self.early.drain(..).collect()),
                Next::Late => {
                    let message = "the sandbox does not say what has changed";
                    return Err(Error::Silent(message.to_owned()));
                }
            }
        }
    }

    fn next_until(&mut self, deadline: Option<Instant>) -> Result<Option<FileEvent>, Error> {
        if let Some(event) = self.early.pop_front() {
            return Ok(Some(event));
        }
        loop {
            match self.checked(deadline)? {
                Next::Event(event) => return Ok(Some(event)),
                // Of a question that was given up.
                Next::Told => {}
                Next::End | Next::Late => return Ok(None),
            }
        }
    }

    fn checked(&mut self, deadline: Option<Instant>) -> Result<Next, Error> {
        let next = self.decode(deadline);
        if next.is_err() {
            self.output = None;
        }
        next
    }

    fn decode(&mut self, deadline: Option<Instant>) -> Result<Next, Error> {
        let mut buffer = vec![0; PIECE];
        loop {
            // Of a guest that has said something else, nothing more is taken.
            let Some(output) = &mut self.output else {
                return Ok(Next::End);
            };
            match self.decoder.next_message() {
                Ok(Some(FileReply::Event(event))) => return FileEvent::new(event).map(Next::Event),
                Ok(Some(FileReply::Told)) => return Ok(Next::Told),
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => return Err(Error::BadReply),
            }
            let ready = micabox_owner::wait(output.as_fd(), deadline);
            if !ready.map_err(|_| Lost::closed())? {
                return Ok(Next::Late);
            }
            match output.read(&mut buffer).map_err(|_| Lost::closed())? {
                0 => {
                    self.output = None;
                    self.operation.end()?;
                }
                count => self.decoder.push(buffer.get(..count).unwrap_or_default()),
            }
        }
    }
}

impl Iterator for Watch {
    type Item = Result<FileEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_until(None).transpose()
    }
}
