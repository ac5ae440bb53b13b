//! Requests from other processes: a socket in the sandbox's directory.
//!
//! One request a connection, a line of JSON; one line of JSON back when it is done.
//! The directory belongs to one user and is closed to all others, so whoever can
//! connect may ask.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, io};

use serde::{Deserialize, Serialize};

const SOCKET: &str = "control";

/// Most bytes of a request or an answer.
const MAX_LINE: u64 = 4096;

/// How long whoever connects may take to say what they want.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// End the sandbox.
    Stop {
        /// How long its first command has after its stop signal.
        grace: Duration,
    },
    /// Have the machine stand still until whoever asked closes the connection, however that
    /// comes.
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
    Failed(String),
}

/// An answer, and what is to last for as long as whoever asked stays connected.
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) held: Option<Box<dyn Send>>,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { answer, held: None }
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
    /// Serves requests about the sandbox in `directory`.
    pub(crate) fn serve(
        directory: &Path,
        handler: impl Fn(Request) -> Reply + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let path = directory.join(SOCKET);
        // That of a creator who was killed. Whoever starts a sandbox holds its lock.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = with_short_path(directory, UnixListener::bind)?;
        let accepting = listener.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                // One at a time: the second to ask for a stop waits for the first.
                while let Ok((stream, _)) = accepting.accept() {
                    answer(&stream, &handler);
                }
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
        let Some(thread) = self.thread.take() else {
            return;
        };
        // The last request may be what ends us, from that very thread.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: &UnixStream, handler: &impl Fn(Request) -> Reply) {
    let _ = stream.set_read_timeout(Some(REQUEST_TIMEOUT));
    let reply = match receive(stream) {
        Ok(request) => handler(request),
        Err(error) => Answer::Failed(error.to_string()).into(),
    };
    // Nobody may be waiting for it any more.
    let _ = send(stream, &reply.answer);
    if reply.held.is_some() {
        let _ = stream.set_read_timeout(None);
        let _ = stream.read(&mut [0]);
    }
}

/// Asks the creator of the sandbox in `directory` and waits for the answer, for at
/// most `patience`.
pub(crate) fn ask(directory: &Path, request: &Request, patience: Duration) -> io::Result<Answer> {
    Ok(ask_and_stay(directory, request, patience)?.0)
}

/// As [`ask`]; the connection stays open until the result is dropped.
pub(crate) fn ask_and_stay(
    directory: &Path,
    request: &Request,
    patience: Duration,
) -> io::Result<(Answer, Connection)> {
    let stream = with_short_path(directory, UnixStream::connect)?;
    stream.set_read_timeout(Some(patience))?;
    send(&stream, request)?;
    Ok((receive(&stream)?, Connection(stream)))
}

/// A connection to a sandbox's creator.
#[derive(Debug)]
pub(crate) struct Connection(
    #[expect(dead_code, reason = "dropping it says something")] UnixStream,
);

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
        let control = Control::serve(&deep, |request| {
            assert_eq!(request, STOP);
            Answer::Done.into()
        })
        .unwrap();
        let patience = Duration::from_secs(30);
        assert_eq!(ask(&deep, &STOP, patience).unwrap(), Answer::Done);
        assert_eq!(ask(&deep, &STOP, patience).unwrap(), Answer::Done);
        drop(control);
        assert_eq!(fs::read_dir(&deep).unwrap().count(), 0);
        ask(&deep, &STOP, patience).unwrap_err();
    }

    #[test]
    fn what_is_held_lasts_as_long_as_the_connection() {
        struct Held(std::sync::mpsc::Sender<()>);
        impl Drop for Held {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let (gone, was_dropped) = std::sync::mpsc::channel();
        let _control = Control::serve(dir.path(), move |request| {
            assert_eq!(request, Request::Hold);
            Reply {
                answer: Answer::Done,
                held: Some(Box::new(Held(gone.clone()))),
            }
        })
        .unwrap();
        let patience = Duration::from_secs(30);
        let held = ask_and_stay(dir.path(), &Request::Hold, patience).unwrap();
        assert_eq!(held.0, Answer::Done);
        was_dropped.try_recv().unwrap_err();
        drop(held);
        was_dropped.recv_timeout(patience).unwrap();
    }

    #[test]
    fn nonsense_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _control = Control::serve(dir.path(), |_| unreachable!()).unwrap();
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
