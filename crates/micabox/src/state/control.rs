//! Requests from other processes: a socket in the sandbox's directory.
//!
//! One request a connection, a line of JSON; one line of JSON back when it is done. Whoever
//! asks for [`Request::Hold`] gets a line when the machine stands still, says something at
//! least every [`SILENCE`], and gets a second line if it stood still to the end.
//!
//! The directory belongs to one user and is closed to all others, so whoever can
//! connect may ask.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

const SOCKET: &str = "control";

/// Most bytes of a request or an answer.
const MAX_LINE: u64 = 4096;

/// How long whoever connects may take to say what they want.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long whoever has a machine stand still may say nothing: their process may be stopped.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);

/// How often they say something.
const BEAT: Duration = Duration::from_secs(1);

/// How often somebody who waits for an answer looks whether to go on.
const POLL: Duration = Duration::from_millis(100);

/// What whoever has a machine stand still says: that it is still needed, that it is not.
const NEEDED: u8 = b'.';
const RELEASED: u8 = b'\n';

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// End the sandbox.
    Stop {
        /// How long its first command has after its stop signal.
        grace: Duration,
    },
    /// Have the machine stand still until whoever asked needs that no longer, or is gone.
    Hold,
    /// Save the machine, its memory and its disk into this directory.
    Save {
        /// Of a snapshot.
        directory: PathBuf,
    },
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Done,
    /// The guest did not do it in time, so that its machine was killed; why.
    Killed(String),
    Failed(String),
}

/// Whoever made a request and waits for the answer.
#[derive(Debug)]
pub(crate) struct Asker<'a>(&'a UnixStream);

impl Asker<'_> {
    /// Says that what was asked for is so, and returns when it need not be so any more:
    /// whether it was so for as long as it was needed. It was not if whoever asked has been
    /// silent for too long, is gone, or was hung up on.
    pub(crate) fn hold(&self) -> bool {
        let mut stream = self.0;
        let begun =
            send(stream, &Answer::Done).and_then(|()| stream.set_read_timeout(Some(SILENCE)));
        let mut said = [0];
        while begun.is_ok() && matches!(stream.read(&mut said), Ok(1)) {
            if said == [RELEASED] {
                return true;
            }
        }
        false
    }

    /// The connection, for another thread to hang up.
    pub(crate) fn connection(&self) -> io::Result<UnixStream> {
        self.0.try_clone()
    }
}

/// Listens for requests until it is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Serves requests about the sandbox in `directory`, each in a thread of its own. Where
    /// `handler` has no answer the connection just ends.
    pub(crate) fn serve(
        directory: &Path,
        handler: impl Fn(Request, &Asker<'_>) -> Option<Answer> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let path = directory.join(SOCKET);
        // That of a creator who was killed. Whoever starts a sandbox holds its lock.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = with_short_path(directory, UnixListener::bind)?;
        let accepting = listener.try_clone()?;
        let thread = thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                // A stop must not wait for somebody who has the machine stand still.
                thread::scope(|scope| {
                    while let Ok((stream, _)) = accepting.accept() {
                        let handler = &handler;
                        let serve = move || answer(&stream, handler);
                        let thread = thread::Builder::new().name("request".into());
                        // Without another thread the connection ends, and may be made again.
                        let _ = thread.spawn_scoped(scope, serve);
                    }
                });
            })?;
        Ok(Self {
            listener,
            path,
            thread: Some(thread),
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Wakes the thread up: accept fails from here on.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(stream: &UnixStream, handler: &impl Fn(Request, &Asker<'_>) -> Option<Answer>) {
    let _ = stream.set_read_timeout(Some(REQUEST_TIMEOUT));
    let answer = match receive(stream) {
        Ok(request) => handler(request, &Asker(stream)),
        Err(error) => Some(Answer::Failed(error.to_string())),
    };
    if let Some(answer) = answer {
        // Nobody may be waiting for it any more.
        let _ = send(stream, &answer);
    }
}

/// Asks the creator of the sandbox in `directory` and waits for the answer, for at
/// most `patience`.
pub(crate) fn ask(directory: &Path, request: &Request, patience: Duration) -> io::Result<Answer> {
    ask_while(directory, request, patience, || true)
}

/// As [`ask`], for as long as `worthwhile` says that there may be an answer.
pub(crate) fn ask_while(
    directory: &Path,
    request: &Request,
    patience: Duration,
    mut worthwhile: impl FnMut() -> bool,
) -> io::Result<Answer> {
    let stream = with_short_path(directory, UnixStream::connect)?;
    send(&stream, request)?;
    let deadline = Instant::now().checked_add(patience);
    while !is_readable(&stream)? {
        let is_late = deadline.is_some_and(|deadline| Instant::now() > deadline);
        if is_late || !worthwhile() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    receive(&stream)
}

/// Waits a little for something to read.
fn is_readable(stream: &UnixStream) -> io::Result<bool> {
    let mut ready = [PollFd::new(stream, PollFlags::IN)];
    let timeout = Timespec::try_from(POLL).ok();
    match poll(&mut ready, timeout.as_ref()) {
        Err(rustix::io::Errno::INTR) => Ok(false),
        result => Ok(result? > 0),
    }
}

/// Has the creator of the sandbox in `directory` keep the machine from running; waits for
/// that for at most `patience`.
pub(crate) fn hold(directory: &Path, patience: Duration) -> io::Result<Result<Held, String>> {
    let stream = with_short_path(directory, UnixStream::connect)?;
    stream.set_read_timeout(Some(patience))?;
    send(&stream, &Request::Hold)?;
    Ok(match receive(&stream)? {
        Answer::Done => Ok(Held {
            stream,
            said: Instant::now(),
        }),
        Answer::Failed(why) | Answer::Killed(why) => Err(why),
    })
}

/// A machine that stands still, for as long as this says something; not for much longer than
/// [`SILENCE`] otherwise.
#[derive(Debug)]
pub(crate) struct Held {
    stream: UnixStream,
    said: Instant,
}

impl Held {
    /// Says that it is still needed, if it is time to. To be called often.
    pub(crate) fn keep(&mut self) {
        if self.said.elapsed() > BEAT {
            // If nobody hears it, the end will tell.
            let _ = self.stream.write_all(&[NEEDED]);
            self.said = Instant::now();
        }
    }

    /// Has the machine go on: whether it stood still until now.
    pub(crate) fn release(mut self) -> bool {
        let asked = self.stream.write_all(&[RELEASED]);
        asked.is_ok() && matches!(receive(&self.stream), Ok(Answer::Done))
    }
}

fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn receive<T: for<'a> Deserialize<'a>>(stream: &UnixStream) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream.take(MAX_LINE)).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// A socket's address has 108 bytes, and a store may lie deeper than that.
fn with_short_path<T>(
    directory: &Path,
    use_path: impl FnOnce(PathBuf) -> io::Result<T>,
) -> io::Result<T> {
    let directory = fs::File::open(directory)?;
    use_path(PathBuf::from(format!(
        "/proc/self/fd/{}/{SOCKET}",
        directory.as_raw_fd()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOP: Request = Request::Stop {
        grace: Duration::from_secs(3),
    };

    #[test]
    fn a_request_is_answered_however_deep_the_store_lies() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        fs::create_dir(&deep).unwrap();
        let control = Control::serve(&deep, |request, _| {
            assert_eq!(request, STOP);
            Some(Answer::Done)
        })
        .unwrap();
        let patience = Duration::from_secs(30);
        assert_eq!(ask(&deep, &STOP, patience).unwrap(), Answer::Done);
        assert_eq!(ask(&deep, &STOP, patience).unwrap(), Answer::Done);
        drop(control);
        assert_eq!(fs::read_dir(&deep).unwrap().count(), 0);
        ask(&deep, &STOP, patience).unwrap_err();
    }

    /// A sandbox in `directory` of which the first hold tells how long it was, and how it ended.
    fn holding(directory: &Path) -> (Control, std::sync::mpsc::Receiver<(Duration, bool)>) {
        let (ended, end) = std::sync::mpsc::channel();
        let control = Control::serve(directory, move |request, asker| {
            if request == STOP {
                return Some(Answer::Done);
            }
            let begun = Instant::now();
            let to_the_end = asker.hold();
            ended.send((begun.elapsed(), to_the_end)).unwrap();
            to_the_end.then_some(Answer::Done)
        });
        (control.unwrap(), end)
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_hold_lasts_as_long_as_whoever_asked_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let (_control, end) = holding(dir.path());
        let mut held = hold(dir.path(), PATIENCE).unwrap().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < SILENCE + Duration::from_secs(2) {
            held.keep();
            thread::sleep(Duration::from_millis(20));
        }
        end.try_recv().unwrap_err();
        assert!(held.release());
        assert!(end.recv_timeout(PATIENCE).unwrap().1);
        // As if its process were killed.
        drop(hold(dir.path(), PATIENCE).unwrap().unwrap());
        let (time, to_the_end) = end.recv_timeout(PATIENCE).unwrap();
        assert!(time < SILENCE && !to_the_end);
    }

    #[test]
    fn a_hold_ends_when_whoever_asked_falls_silent_and_a_stop_waits_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let (_control, end) = holding(dir.path());
        let held = hold(dir.path(), PATIENCE).unwrap().unwrap();
        assert_eq!(ask(dir.path(), &STOP, SILENCE / 2).unwrap(), Answer::Done);
        end.try_recv().unwrap_err();
        let (time, to_the_end) = end.recv_timeout(PATIENCE).unwrap();
        assert!(time >= SILENCE && !to_the_end);
        // Who wakes up then learns that the machine has gone on.
        assert!(!held.release());
    }

    #[test]
    fn nonsense_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _control = Control::serve(dir.path(), |_, _| unreachable!()).unwrap();
        for nonsense in [
            "\n",
            "{}\n",
            "{\"stop\":{\"grace\":-1}}\n",
            &"x".repeat(5000),
        ] {
            let mut stream = with_short_path(dir.path(), UnixStream::connect).unwrap();
            stream.write_all(nonsense.as_bytes()).unwrap();
            let answer: Answer = receive(&stream).unwrap();
            assert!(matches!(answer, Answer::Failed(_)), "{nonsense}");
        }
    }
}
