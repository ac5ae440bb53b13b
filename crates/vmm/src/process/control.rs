//! Requests to a machine's process to pause or save the machine, or to change what limits its disks.
//!
//! The machine's process opens nothing, so the files to write come with the request. A hostile
//! guest may have taken it over, so its answers are bounded.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use micabox_ground::lock;
use micabox_socket::read_before;
use micabox_spec::DiskRate;

use crate::snapshot::DELTA_HEAD;
use crate::{Error, Snapshot};

/// Timeout of an answer: far longer than writing a machine's memory takes, or a flush of its disks.
const PATIENCE: Duration = Duration::from_secs(600);

/// Timeout of an answer that needs no work to speak of.
const PROMPT: Duration = Duration::from_secs(1);

/// Bytes of a rate: three numbers, little endian, 0 for no limit.
const RATE: usize = 24;

/// Maximum bytes of an answer.
const MAX_ANSWER: usize = 1024;

/// A request, one byte each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Request {
    /// Pause the machine until [`Request::GoOn`] or the end of the channel.
    Pause = b'p',
    /// Pause the machine; the file for the state comes with the request.
    State = b's',
    /// Write state and memory; the file for the memory comes with the request.
    Memory = b'm',
    /// As [`Request::Memory`], but only the pages that differ from the memory that the machine was
    /// restored with, or from its base.
    Delta = b'd',
    /// Resume the machine.
    GoOn = b'g',
    /// Write the list of the pages that the restored machine has written to, into the file that
    /// comes with the request. The machine is not paused.
    Touched = b't',
    /// Limit the traffic of disks from now on, as the bytes behind it say ([`receive_rate`]). The
    /// machine is not paused.
    Rate = b'r',
}

/// The result of [`Request::Pause`], [`Request::Memory`], [`Request::Delta`],
/// [`Request::Touched`] or [`Request::Rate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer(pub(crate) Result<(), String>);

impl Request {
    /// Waits for the next request. Returns None at the end of the channel.
    pub(crate) fn receive(stream: &UnixStream) -> io::Result<Option<(Self, Option<File>)>> {
        let mut byte = [0];
        let received = micabox_socket::receive(stream, &mut byte, 1)?;
        let request = match (received.bytes, byte) {
            (0, _) => return Ok(None),
            (_, [b'p']) => Self::Pause,
            (_, [b's']) => Self::State,
            (_, [b'm']) => Self::Memory,
            (_, [b'd']) => Self::Delta,
            (_, [b'g']) => Self::GoOn,
            (_, [b't']) => Self::Touched,
            (_, [b'r']) => Self::Rate,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let file = received.descriptors.into_iter().next();
        Ok(Some((request, file.map(File::from))))
    }

    fn send(self, stream: &UnixStream, file: Option<&File>) -> io::Result<()> {
        let file = file.map(AsFd::as_fd);
        micabox_socket::send(stream, &[self as u8], file.as_slice())?;
        Ok(())
    }
}

/// Receives the rate behind [`Request::Rate`].
pub(crate) fn receive_rate(mut stream: &UnixStream) -> io::Result<DiskRate> {
    let mut bytes = [0; RATE];
    stream.read_exact(&mut bytes)?;
    let mut numbers = bytes.chunks_exact(8).map(|bytes| {
        let number = bytes.try_into().map_or(0, u64::from_le_bytes);
        (number > 0).then_some(number)
    });
    Ok(DiskRate {
        read: numbers.next().flatten(),
        write: numbers.next().flatten(),
        operations: numbers.next().flatten(),
    })
}

fn send_rate(mut stream: &UnixStream, rate: &DiskRate) -> io::Result<()> {
    let numbers = [rate.read, rate.write, rate.operations];
    let numbers = numbers.map(|number| number.map_or(0, |number| number.max(1)).to_le_bytes());
    stream.write_all(&[&[Request::Rate as u8], numbers.as_flattened()].concat())
}

impl Answer {
    /// Sends the answer: the text's length in two bytes, little endian, and the error's text, which
    /// is empty on success.
    pub(crate) fn send(self, mut stream: &UnixStream) -> io::Result<()> {
        let text = self.0.err().unwrap_or_default().into_bytes();
        let text = text.get(..MAX_ANSWER).unwrap_or(&text);
        let length = u16::try_from(text.len()).unwrap_or_default();
        stream.write_all(&[&length.to_le_bytes(), text].concat())
    }

    /// Waits for the answer until `deadline`.
    fn receive(stream: &UnixStream, deadline: Instant) -> io::Result<Self> {
        let mut length = [0; 2];
        read_before(stream, &mut length, deadline)?;
        let mut text = vec![0; usize::from(u16::from_le_bytes(length)).min(MAX_ANSWER)];
        read_before(stream, &mut text, deadline)?;
        Ok(Self(if text.is_empty() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&text).escape_debug().to_string())
        }))
    }
}

/// The owner's end of the channel.
#[derive(Debug)]
pub(super) struct Control {
    /// Allows one request at a time. None after a request failed, because its answer may still come
    /// later.
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

    /// Returns whether the process takes requests.
    pub(super) fn is_served(&self) -> bool {
        self.ram > 0
    }

    /// Blocks other requests while the guard lives.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<UnixStream>> {
        lock(&self.stream)
    }

    pub(super) fn pause(&self, meanwhile: &mut dyn FnMut()) -> Result<(), Error> {
        let pause = |stream: &UnixStream| Request::Pause.send(stream, None);
        self.ask(PATIENCE, pause, meanwhile).map_err(Error::Pause)
    }

    pub(super) fn save(&self, to: &Snapshot, meanwhile: &mut dyn FnMut()) -> Result<(), Error> {
        self.save_within(PATIENCE, to, meanwhile)
    }

    /// Has the process write the list of the pages that its machine has written to.
    pub(super) fn touched(&self, to: &File) -> Result<(), Error> {
        if !self.is_served() {
            return Err(Error::NoSnapshots { backend: "QEMU" });
        }
        let touched = |stream: &UnixStream| Request::Touched.send(stream, Some(to));
        prompt(&mut self.lock(), touched).map_err(Error::Save)
    }

    /// Has the process limit the traffic of its disks. Does not wait for another request.
    pub(super) fn limit_disks(&self, rate: &DiskRate) -> Result<(), Error> {
        if !self.is_served() {
            return Err(Error::Unsupported {
                backend: "QEMU",
                what: "can't change the rate of a running machine's disks".into(),
            });
        }
        let mut guard = match self.stream.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Error::Paused),
        };
        prompt(&mut guard, |stream| send_rate(stream, rate)).map_err(Error::Limit)
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
        let (memory, length) = match to.base {
            None => (Request::Memory, self.ram),
            Some(_) => (Request::Delta, self.ram.saturating_add(DELTA_HEAD)),
        };
        let save = |stream: &UnixStream| {
            Request::State.send(stream, Some(&to.state))?;
            memory.send(stream, Some(&to.memory))
        };
        // The process's seccomp filter does not allow `ftruncate`.
        let sized = to.memory.set_len(length);
        sized.map_err(|error| Error::Save(error.to_string()))?;
        self.ask(patience, save, meanwhile).map_err(Error::Save)
    }

    /// Sends a request that pauses the machine, runs `meanwhile`, and resumes the machine.
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
            // The machine resumes when its process sees the end of the stream.
            *guard = None;
            Err(error.to_string())
        })
    }
}

/// Sends a request that does not pause the machine, and waits for its answer.
fn prompt(
    guard: &mut Option<UnixStream>,
    request: impl FnOnce(&UnixStream) -> io::Result<()>,
) -> Result<(), String> {
    let Some(stream) = guard.as_ref() else {
        return Err("its process did not answer an earlier request".to_owned());
    };
    let asked = request(stream).and_then(|()| Answer::receive(stream, Instant::now() + PROMPT));
    match asked {
        Ok(Answer(done)) => done,
        Err(error) => {
            *guard = None;
            Err(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{sleep, spawn};

    use micabox_testing::PATIENCE;

    use super::*;

    fn save(control: &Control, patience: Duration) -> Result<(), String> {
        let saved = control.save_within(patience, &Snapshot::in_memory().unwrap(), &mut || ());
        saved.map_err(|error| error.to_string())
    }

    /// Receives one request to save, as a worker does.
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
        assert_eq!(
            save(&control, PATIENCE).unwrap_err(),
            "saving the machine: no room"
        );
        save(&control, PATIENCE).unwrap();
        worker.join().unwrap();
    }

    #[test]
    fn a_rate_arrives_as_it_was_sent_but_not_in_a_paused_machine() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let control = Control::new(ours, 4096);
        let rate = DiskRate {
            read: None,
            write: Some(u64::MAX),
            operations: Some(0),
        };
        let worker = spawn(move || {
            let request = Request::receive(&theirs).unwrap();
            assert!(matches!(request, Some((Request::Rate, None))));
            let received = receive_rate(&theirs).unwrap();
            Answer(Ok(())).send(&theirs).unwrap();
            received
        });
        control.limit_disks(&rate).unwrap();
        // A rate of none would stop the disk.
        let operations = Some(1);
        assert_eq!(worker.join().unwrap(), DiskRate { operations, ..rate });
        let paused = control.lock();
        let error = control.limit_disks(&rate).unwrap_err();
        assert!(matches!(error, Error::Paused), "{error}");
        drop(paused);
    }

    #[test]
    fn after_a_missed_deadline_the_worker_saves_no_more() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let control = Control::new(ours, 4096);
        // Sends each byte in time, and never the last one.
        let worker = spawn(move || {
            take(&theirs);
            // Even the length may come too late, on a busy machine.
            let mut sent = (&theirs).write_all(&1000_u16.to_le_bytes());
            while sent.is_ok() {
                // Sleep: the worker is slow.
                sleep(Duration::from_millis(20));
                sent = (&theirs).write_all(b"x");
            }
        });
        let begin = Instant::now();
        let error = save(&control, Duration::from_millis(200)).unwrap_err();
        assert!(error.contains("does not answer"), "{error}");
        assert!(begin.elapsed() < PATIENCE);
        // The worker saw the end of the stream, so late answers can't be taken for others.
        worker.join().unwrap();
        let error = save(&control, Duration::from_secs(1)).unwrap_err();
        assert!(error.contains("an earlier request"), "{error}");
    }
}
