//! Requests to a machine's process: to pause the machine, and to save it.
//!
//! The process that runs the machine opens nothing, so the files to write come with the
//! request. It may be in a hostile guest's hands: its answers are bounded.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::{Error, Snapshot};

/// Far longer than writing a machine's memory takes, or a flush of its disks.
const PATIENCE: Duration = Duration::from_secs(600);

/// Most bytes of an answer.
const MAX_ANSWER: usize = 1024;

/// What is asked for, a byte each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Request {
    /// Stand still, until [`Request::GoOn`] or the end of the channel.
    Pause = b'p',
    /// Stand still; the file for the state comes with it.
    State = b's',
    /// Write both; the file for the memory comes with it.
    Memory = b'm',
    /// Go on.
    GoOn = b'g',
}

/// What became of [`Request::Pause`] or [`Request::Memory`]: nothing, or what went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer(pub(crate) Result<(), String>);

impl Request {
    /// Waits for the next request; None when nobody will make one any more.
    pub(crate) fn receive(stream: &UnixStream) -> io::Result<Option<(Self, Option<File>)>> {
        let mut byte = [0];
        let (count, file) = stream.recv_with_fd(&mut byte).map_err(from_errno)?;
        let request = match (count, byte) {
            (0, _) => return Ok(None),
            (_, [b'p']) => Self::Pause,
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

    /// Whether the process takes requests.
    pub(super) fn is_served(&self) -> bool {
        self.ram > 0
    }

    /// Keeps others from making requests.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pause(&self, meanwhile: &mut dyn FnMut()) -> Result<(), Error> {
        let pause = |stream: &UnixStream| Request::Pause.send(stream, None);
        self.ask(PATIENCE, pause, meanwhile).map_err(Error::Pause)
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
        if !self.is_served() {
            return Err(Error::NoSnapshots { backend: "QEMU" });
        }
        let save = |stream: &UnixStream| {
            Request::State.send(stream, Some(&to.state))?;
            Request::Memory.send(stream, Some(&to.memory))
        };
        // The process could not make it that long.
        let sized = to.memory.set_len(self.ram);
        sized.map_err(|error| Error::Save(error.to_string()))?;
        self.ask(patience, save, meanwhile).map_err(Error::Save)
    }

    /// Makes a request after which the machine stands still, does `meanwhile`, and has it go
    /// on.
    fn ask(
        &self,
        patience: Duration,
        request: impl FnOnce(&UnixStream) -> io::Result<()>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), String> {
        let mut guard = self.lock();
        let Some(stream) = guard.as_ref() else {
            return Err("its process did not answer an earlier request".to_owned());
        };
        let ask = || -> io::Result<Result<(), String>> {
            request(stream)?;
            let Answer(done) = Answer::receive(stream, Instant::now() + patience)?;
            if done.is_ok() {
                meanwhile();
            }
            Request::GoOn.send(stream, None)?;
            Ok(done)
        };
        ask().unwrap_or_else(|error| {
            // The machine goes on when its process sees the end of the stream.
            *guard = None;
            Err(error.to_string())
        })
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
