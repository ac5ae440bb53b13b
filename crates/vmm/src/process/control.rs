//! Requests to a machine's process: to save the machine, so far.
//!
//! The process that runs the machine opens nothing, so the files to write come with the
//! request. It may be in a hostile guest's hands: its answers are bounded.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

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

    /// Waits for it until `deadline`.
    fn receive(stream: &UnixStream, deadline: Instant) -> io::Result<Self> {
        let mut length = [0; 2];
        read(stream, &mut length, deadline)?;
        let mut text = vec![0; usize::from(u16::from_le_bytes(length)).min(MAX_ANSWER)];
        read(stream, &mut text, deadline)?;
        Ok(Self(match text.is_empty() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&text).escape_debug().to_string()),
        }))
    }
}

/// Fills `bytes`, however small the pieces are that they come in.
fn read(mut stream: &UnixStream, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "it does not answer",
            ));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = bytes.get_mut(count..).unwrap_or_default(),
            // The deadline, or a signal.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn from_errno(error: vmm_sys_util::errno::Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// Our end.
#[derive(Debug)]
pub(super) struct Control {
    /// One request at a time; none any more once one was not answered as it should be, because
    /// its answer may come later.
    stream: Mutex<Option<UnixStream>>,
    /// Bytes of the machine's RAM; 0 if no requests are taken.
    ram: u64,
}

impl Control {
    pub(super) fn new(stream: UnixStream, ram: u64) -> Self {
        Self {
            stream: Mutex::new(Some(stream)),
            ram,
        }
    }

    pub(super) fn save(&self, to: &Snapshot, meanwhile: &mut dyn FnMut()) -> Result<(), Error> {
        self.save_within(PATIENCE, to, meanwhile)
    }

    fn save_within(
        &self,
        patience: Duration,
        to: &Snapshot,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Error> {
        if self.ram == 0 {
            return Err(Error::NoSnapshots { backend: "QEMU" });
        }
        let mut guard = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |error: io::Error| Error::Save(error.to_string());
        let Some(stream) = guard.as_ref() else {
            let why = "its process did not answer an earlier request";
            return Err(Error::Save(why.to_owned()));
        };
        // The process could not make it that long.
        to.memory.set_len(self.ram).map_err(failed)?;
        let mut request = || -> io::Result<Result<(), String>> {
            Request::State.send(stream, Some(&to.state))?;
            Request::Memory.send(stream, Some(&to.memory))?;
            let Answer(saved) = Answer::receive(stream, Instant::now() + patience)?;
            if saved.is_ok() {
                meanwhile();
            }
            Request::GoOn.send(stream, None)?;
            Ok(saved)
        };
        match request() {
            Ok(saved) => saved.map_err(Error::Save),
            Err(error) => {
                // The machine goes on when its process sees the end of the stream.
                *guard = None;
                Err(failed(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{sleep, spawn};

    use super::*;

    fn save(control: &Control, patience: Duration) -> Result<(), String> {
        let saved = control.save_within(patience, &Snapshot::in_memory().unwrap(), &mut || ());
        saved.map_err(|error| error.to_string())
    }

    /// Takes one request, as a worker does.
    fn take(stream: &UnixStream) {
        for expected in [Request::State, Request::Memory] {
            let (request, file) = Request::receive(stream).unwrap().unwrap();
            assert!(request == expected && file.is_some());
        }
    }

    #[test]
    fn a_save_that_fails_leaves_the_channel_in_step() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let control = Control::new(ours, 4096);
        let worker = spawn(move || {
            for answer in [Err("no room".to_owned()), Ok(())] {
                take(&theirs);
                Answer(answer).send(&theirs).unwrap();
                let next = Request::receive(&theirs).unwrap();
                assert!(matches!(next, Some((Request::GoOn, None))));
            }
        });
        let soon = Duration::from_secs(30);
        assert_eq!(
            save(&control, soon).unwrap_err(),
            "saving the machine: no room"
        );
        save(&control, soon).unwrap();
        worker.join().unwrap();
    }

    #[test]
    fn an_answer_has_one_deadline_and_there_is_no_save_after_it() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let control = Control::new(ours, 4096);
        // Each byte in time, and never the last.
        let worker = spawn(move || {
            take(&theirs);
            (&theirs).write_all(&1000_u16.to_le_bytes()).unwrap();
            while (&theirs).write_all(b"x").is_ok() {
                sleep(Duration::from_millis(20));
            }
        });
        let begin = Instant::now();
        let error = save(&control, Duration::from_millis(200)).unwrap_err();
        assert!(error.contains("does not answer"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(10));
        // The other side saw the end, and late answers are answers to nothing.
        worker.join().unwrap();
        let error = save(&control, Duration::from_secs(1)).unwrap_err();
        assert!(error.contains("an earlier request"), "{error}");
    }
}
