//! The caller's end of a stream from a worker.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::os::fd::OwnedFd;

use micabox_jail::{Call, CallError, Worker};
use serde::de::DeserializeOwned;

use super::{Fault, limits, records};

/// The bytes that a worker writes. Until the stream's end is read or [`finish`](Stream::finish)
/// returns, they may be incomplete. Dropping the stream ends the worker.
pub struct Stream<C: Call> {
    pipe: io::BufReader<File>,
    worker: Option<Worker<C>>,
    reply: Option<Result<C::Reply, CallError<C::Error>>>,
    /// Bytes that may still come.
    left: u64,
}

/// Bytes per read from the pipe: its capacity.
const PIECE: usize = 64 << 10;

impl<C: Call<Error = Fault>> Stream<C> {
    /// Starts a job with the files `first`, the pipe, and `rest`. It may write `most` bytes.
    pub fn start(
        job: &C,
        first: File,
        rest: Vec<File>,
        most: u64,
    ) -> Result<Self, CallError<Fault>> {
        let (pipe, output) = io::pipe().map_err(|source| CallError::Start {
            kind: C::KIND,
            source,
        })?;
        let limits = limits(&first, 0);
        let files = [OwnedFd::from(first), output.into()];
        let files = files.into_iter().chain(rest.into_iter().map(OwnedFd::from));
        let worker = Worker::start(job, files.collect(), &limits)?;
        Ok(Self {
            pipe: io::BufReader::with_capacity(PIECE, OwnedFd::from(pipe).into()),
            worker: Some(worker),
            reply: None,
            left: most,
        })
    }

    /// Discards the rest of the stream and returns the worker's reply.
    ///
    /// # Errors
    /// Why the job failed, or that the worker wrote more than it may.
    pub fn finish(mut self) -> Result<C::Reply, CallError<Fault>> {
        let rest = io::copy(&mut self, &mut io::sink());
        match (self.reply, rest) {
            (Some(reply), _) => reply,
            (None, Err(error)) => Err(CallError::Refused(Fault::Output(error.to_string()))),
            (None, Ok(_)) => Err(CallError::Refused(Fault::Output("it has no end".into()))),
        }
    }

    /// Returns the worker's error, if reading failed because of it.
    pub fn verdict(self) -> Option<CallError<Fault>> {
        self.reply.and_then(Result::err)
    }
}

impl<C: Call<Error = Fault>> Read for Stream<C> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let count = self.pipe.read(buffer)?;
        if count > 0 {
            self.left = self.left.checked_sub(count as u64).ok_or_else(too_much)?;
            return Ok(count);
        }
        if let Some(worker) = self.worker.take() {
            self.reply = Some(worker.wait());
        }
        match &self.reply {
            Some(Err(error)) => Err(io::Error::other(error.to_string())),
            _ => Ok(0),
        }
    }
}

/// Records of one type that a worker writes.
#[derive(Debug)]
pub struct Records<C: Call, T> {
    stream: Stream<C>,
    of: PhantomData<fn() -> T>,
}

impl<C: Call<Error = Fault>, T: DeserializeOwned> Records<C, T> {
    /// Reads the records of a stream.
    pub fn new(stream: Stream<C>) -> Self {
        Self {
            stream,
            of: PhantomData,
        }
    }

    /// Discards the remaining records and returns the reply.
    ///
    /// # Errors
    /// As [`Stream::finish`].
    pub fn finish(self) -> Result<C::Reply, CallError<Fault>> {
        self.stream.finish()
    }

    /// Returns the next record; none at the end.
    ///
    /// # Errors
    /// Why the next record can't be read.
    pub fn next_record(&mut self) -> Result<Option<T>, CallError<Fault>> {
        records::read(&mut self.stream).map_err(|error| {
            let reply = self.stream.reply.take();
            reply
                .and_then(Result::err)
                .unwrap_or_else(|| CallError::Refused(Fault::output(error)))
        })
    }
}

fn too_much() -> io::Error {
    io::Error::other(
        "more comes out of the disk than it can hold: it is damaged, files share their blocks",
    )
}

impl<C: Call> fmt::Debug for Stream<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("kind", &C::KIND).finish()
    }
}
