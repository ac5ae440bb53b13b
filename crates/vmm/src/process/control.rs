//! Requests to a machine's process: to save the machine, so far.
//!
//! The process that runs the machine opens nothing, so the files to write come with the
//! request. It may be in a hostile guest's hands: its answers are bounded.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::{Error, Snapshot};

/// Far longer than writing a machine's memory takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// Most bytes of an answer.
const MAX_ANSWER: usize = 1024;

/// What is asked for, a byte each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Request {
    /// Stand still; the file for the state comes with it.
    State = b's',
    /// Write both; the file for the memory comes with it.
    Memory = b'm',
    /// Go on.
    GoOn = b'g',
}

/// What became of [`Request::Memory`]: nothing, or what went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer(pub(crate) Result<(), String>);

impl Request {
    /// Waits for the next request; None when nobody will make one any more.
    pub(crate) fn receive(stream: &UnixStream) -> io::Result<Option<(Self, Option<File>)>> {
        let mut byte = [0];
        let (count, file) = stream.recv_with_fd(&mut byte).map_err(from_errno)?;
        let request = match (count, byte) {
            (0, _) => return Ok(None),
            (_, [b's']) => Self::State,
            (_, [b'm']) => Self::Memory,
            (_, [b'g']) => Self::GoOn,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(Some((request, file)))
    }

    fn send(self, mut stream: &UnixStream, file: Option<&File>) -> io::Result<()> {
        let byte = [self as u8];
        match file {
            Some(file) => stream
                .send_with_fd(&byte[..], file.as_raw_fd())
                .map(drop)
                .map_err(from_errno),
            None => stream.write_all(&byte),
        }
    }
}

impl Answer {
    /// Says it: a length of two bytes, little endian, and as many of text; none if all went
    /// well.
    pub(crate) fn send(self, mut stream: &UnixStream) -> io::Result<()> {
        let text = self.0.err().unwrap_or_default().into_bytes();
        let text = text.get(..MAX_ANSWER).unwrap_or(&text);
        let length = u16::try_from(text.len()).unwrap_or_default();
        stream.write_all(&[&length.to_le_bytes(), text].concat())
    }

    fn receive(mut stream: &UnixStream) -> io::Result<Self> {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut text = vec![0; usize::from(u16::from_le_bytes(length)).min(MAX_ANSWER)];
        stream.read_exact(&mut text)?;
        Ok(Self(match text.is_empty() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&text).escape_debug().to_string()),
        }))
    }
}

fn from_errno(error: vmm_sys_util::errno::Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// Our end.
#[derive(Debug)]
pub(super) struct Control {
    /// One request at a time.
    stream: Mutex<UnixStream>,
    /// Bytes of the machine's RAM; 0 if nobody listens.
    ram: u64,
}

impl Control {
    pub(super) fn new(stream: UnixStream, ram: u64) -> Self {
        Self {
            stream: Mutex::new(stream),
            ram,
        }
    }

    pub(super) fn save(&self, to: &Snapshot, meanwhile: &mut dyn FnMut()) -> Result<(), Error> {
        if self.ram == 0 {
            return Err(Error::NoSnapshots { backend: "QEMU" });
        }
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |error: io::Error| Error::Save(error.to_string());
        // The process could not make it that long.
        to.memory.set_len(self.ram).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        let saved = Request::State
            .send(&stream, Some(&to.state))
            .and_then(|()| Request::Memory.send(&stream, Some(&to.memory)))
            .and_then(|()| Answer::receive(&stream));
        let result = match saved {
            Ok(Answer(Ok(()))) => {
                meanwhile();
                Ok(())
            }
            Ok(Answer(Err(problem))) => Err(Error::Save(problem)),
            Err(error) => return Err(failed(error)),
        };
        Request::GoOn.send(&stream, None).map_err(failed)?;
        result
    }
}
