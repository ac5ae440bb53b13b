//! The owner's side of a call.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;

use micabox_ground::lock;
use micabox_socket::read_frame;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};

use super::serve::{ABORTED, OUT_OF_TIME, PANICKED};
use super::{Call, CallError, Death, Given, Limits};
use crate::feed::TICK;
use crate::{
    CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID, CAUGHT, Child, Claim, Confinement, MAX_FILES,
    Program, Running, Supervised, Tail, arguments, program,
};

/// Bytes of address space of every worker: the program, its libraries, stacks and what an allocator
/// reserves for its four arenas.
const OWN_ADDRESS_SPACE: u64 = 512 << 20;

/// Bytes of a worker's messages to keep.
const MESSAGES: usize = 4 << 10;

/// A running parser. Dropping it kills it.
#[derive(Debug)]
pub struct Worker<C: Call> {
    process: Supervised,
    ended: Receiver<Ended>,
    call: PhantomData<fn(C) -> C>,
}

/// How a worker ended.
enum Ended {
    Replied(Vec<u8>),
    TooLong,
    Died(io::Result<ExitStatus>, String),
}

impl<C: Call> Worker<C> {
    /// Starts a worker, which gets `files` in this order and no other descriptors.
    ///
    /// # Errors
    /// [`CallError::Start`].
    pub fn start(
        request: &C,
        files: Vec<OwnedFd>,
        limits: &Limits,
    ) -> Result<Self, CallError<C::Error>> {
        let kind = C::KIND;
        let failed = |source| CallError::Start { kind, source };
        let (reply, reply_child) = pipe_with(PipeFlags::CLOEXEC)
            .map_err(io::Error::from)
            .map_err(failed)?;
        let given = Given {
            reply: reply_child.as_raw_fd(),
            files: files.iter().map(AsRawFd::as_raw_fd).collect(),
        };
        let description = describe(&given, request).map_err(failed)?;
        let number = description.as_raw_fd();
        let keep = given.files.iter().copied().chain([given.reply, number]);
        let confinement = Confinement {
            keep: keep.collect(),
            address_space: limits.memory.saturating_add(OWN_ADDRESS_SPACE),
            file_size: limits.file_size,
            descriptors: MAX_FILES,
            processor_seconds: limits.processor_seconds,
            // To read its own program, and to change its user in its jail.
            capabilities: &[CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID],
        };
        let claim = Claim::new().map_err(failed)?;
        let arguments = arguments(kind, &description, claim.as_ref());
        let program = program(kind)
            .and_then(|path| Program::new(&path, Some(&format!("mica {kind}")), arguments))
            .map_err(failed)?;
        let most = usize::try_from(limits.reply).unwrap_or(usize::MAX);
        let (end, ended) = sync_channel(1);
        let process = Supervised::start(
            format!("{kind} worker"),
            (files, reply_child, description),
            (),
            move |()| Child::spawn(&program, &confinement, None),
            move |running, stderr| {
                watch(running, stderr, reply.into(), most, &end);
                // Killed, a keeper may leave the worker a moment longer: nothing has its stderr open by now.
                drop(claim);
            },
        );
        Ok(Self {
            process: process.map_err(failed)?,
            ended,
            call: PhantomData,
        })
    }

    /// Waits for the reply. By then, everything that the worker wrote to its files is there.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn wait(self) -> Result<C::Reply, CallError<C::Error>> {
        self.wait_while(|| true)
    }

    /// As [`Worker::wait`], but calls `keep_going` once a second and stops waiting if it returns false.
    ///
    /// # Errors
    /// [`CallError`]; [`Death::GivenUp`] if `keep_going` returned false.
    pub fn wait_while(
        self,
        mut keep_going: impl FnMut() -> bool,
    ) -> Result<C::Reply, CallError<C::Error>> {
        let ended = loop {
            match self.ended.recv_timeout(TICK) {
                Err(RecvTimeoutError::Timeout) if keep_going() => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(CallError::Died {
                        kind: C::KIND,
                        death: Death::GivenUp,
                    });
                }
                ended => break ended,
            }
        };
        // The worker is about to end, so there is no need to wait for its thread now.
        let mut threads = self::ended();
        threads.retain(|thread| !thread.is_finished());
        threads.extend(self.process.into_thread());
        drop(threads);
        let death = match ended {
            Ok(Ended::Replied(bytes)) => {
                match postcard::from_bytes::<Result<C::Reply, C::Error>>(&bytes) {
                    Ok(Ok(reply)) => return Ok(reply),
                    Ok(Err(error)) => return Err(CallError::Refused(error)),
                    Err(_) => Death::BadReply,
                }
            }
            Ok(Ended::TooLong) => Death::BadReply,
            Ok(Ended::Died(status, text)) => death(status, text),
            Err(_) => Death::Exited(-1, "its thread died".to_owned()),
        };
        Err(CallError::Died {
            kind: C::KIND,
            death,
        })
    }
}

/// The threads that wait for workers which have replied.
static ENDED: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

/// Waits for the workers that have replied to be gone. A program that ends earlier leaves their processes to the first
/// process of the machine or container.
pub fn wait_for_ended_workers() {
    let watchers = std::mem::take(&mut *ended());
    for watcher in watchers {
        let _ = watcher.join();
    }
}

fn ended() -> MutexGuard<'static, Vec<JoinHandle<()>>> {
    lock(&ENDED)
}

/// Writes the numbers of the worker's descriptors and the request to a new file.
fn describe<C: Call>(given: &Given, request: &C) -> io::Result<OwnedFd> {
    let encode = |result: postcard::Result<Vec<u8>>| result.map_err(io::Error::other);
    let mut file = File::from(memfd_create("request", MemfdFlags::CLOEXEC)?);
    file.write_all(&encode(postcard::to_allocvec(given))?)?;
    file.write_all(&encode(postcard::to_allocvec(request))?)?;
    file.rewind()?;
    Ok(file.into())
}

/// Watches a worker until it ends.
fn watch(
    running: Running<()>,
    stderr: File,
    mut reply: File,
    most: usize,
    end: &SyncSender<Ended>,
) {
    let tail = Tail::new(MESSAGES);
    // Without a thread the worker's messages are lost, and it may wait until it is killed.
    let drained = tail.drain_in_thread(stderr);
    let replied = match read_frame(&mut reply, most) {
        Ok(bytes) => bytes.map(Ended::Replied),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Some(Ended::TooLong),
        Err(_) => None,
    };
    if let Some(ended) = replied {
        let _ = end.send(ended);
        // The worker has nothing more to do.
        running.end();
        let _ = running.wait();
        let _ = drained.map(JoinHandle::join);
        return;
    }
    running.expect_end();
    let status = running.wait();
    let _ = drained.map(JoinHandle::join);
    let _ = end.send(Ended::Died(status, tail.text().trim().to_owned()));
}

fn death(status: io::Result<ExitStatus>, text: String) -> Death {
    let status = match status {
        Ok(status) => status,
        Err(error) => return Death::Exited(-1, error.to_string()),
    };
    match (status.code(), status.signal()) {
        (Some(CAUGHT), _) => Death::ForbiddenCall(text),
        (Some(PANICKED), _) => Death::Panicked(text),
        (Some(ABORTED), _) => Death::Aborted(text),
        (Some(OUT_OF_TIME), _) => Death::OutOfTime,
        (Some(code), _) => Death::Exited(code, text),
        (None, signal) => Death::Signal(signal.unwrap_or_default()),
    }
}
