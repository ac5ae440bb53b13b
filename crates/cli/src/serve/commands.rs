//! Commands of mica, as processes: each has its own signals, streams and end.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use micabox_ground::{lock, piece};
use micabox_owner::protocol::frame::Pipe;
use micabox_owner::protocol::{MAX_DATA, Stream, WINDOW};
use micabox_wire::ReceiveWindow;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::message::{Command, Reply};
use super::replies::Replies;
use micabox_program::failure::Failure;
use micabox_program::report::{self, Failed};

/// Most bytes of a command's report that are read.
const REPORT: usize = 64 << 10;

/// How long commands may take to end when the client is gone.
const GRACE: Duration = Duration::from_secs(5);

/// The commands that run.
#[derive(Clone, Debug)]
pub struct Commands {
    running: Arc<Running>,
    replies: Arc<Replies>,
}

#[derive(Debug, Default)]
struct Running {
    all: Mutex<HashMap<u32, Handle>>,
    /// Notified when one has ended.
    ended: Condvar,
}

#[derive(Debug)]
struct Handle {
    process: OwnedFd,
    stdin: Option<Input>,
    windows: [Arc<Window>; 2],
}

/// Stdin: bytes that were received are on their way to the thread that writes them.
#[derive(Debug)]
struct Input {
    received: Arc<Mutex<ReceiveWindow>>,
    bytes: Sender<Vec<u8>>,
}

/// How many bytes of an output may be sent.
#[derive(Debug)]
struct Window {
    open: Mutex<u32>,
    opened: Condvar,
}

impl Commands {
    /// No commands yet.
    pub fn new(replies: &Arc<Replies>) -> Self {
        Self {
            running: Arc::default(),
            replies: Arc::clone(replies),
        }
    }

    /// Starts a command.
    pub fn start(&self, number: u32, command: &Command) {
        if let Err(failure) = self.begin(number, command) {
            self.replies.send(number, &Reply::failed(&failure));
        }
    }

    fn begin(&self, number: u32, command: &Command) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::of(&error).context("starting a command of mica");
        let mut all = lock(&self.running.all);
        if all.contains_key(&number) {
            return Err(Failure::new(format!("the number {number} is in use")));
        }
        let args = command.args.iter();
        let args = args.map(|text| OsString::from_vec(text.0.clone()));
        let stdin = if command.stdin {
            Stdio::piped()
        } else {
            Stdio::null()
        };
        let report = memfd_create("report", MemfdFlags::CLOEXEC);
        let report = File::from(report.map_err(|errno| failed(errno.into()))?);
        let place = format!("/proc/{}/fd/{}", std::process::id(), report.as_raw_fd());
        let mut child = std::process::Command::new("/proc/self/exe")
            .arg0("mica")
            .args(args)
            .env(report::VARIABLE, place)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let pid = rustix::process::Pid::from_child(&child);
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(errno) => {
                let _ = child.kill().and_then(|()| child.wait());
                return Err(failed(errno.into()));
            }
        };
        let started = self.attach(number, command, child, report);
        match started {
            Ok((stdin, windows)) => {
                let handle = Handle {
                    process,
                    stdin,
                    windows,
                };
                all.insert(number, handle);
                Ok(())
            }
            Err(error) => {
                let _ = pidfd_send_signal(&process, Signal::KILL);
                Err(failed(error))
            }
        }
    }

    /// Starts the threads of a command's streams, and that of its end.
    fn attach(
        &self,
        number: u32,
        command: &Command,
        mut child: Child,
        report: File,
    ) -> io::Result<(Option<Input>, [Arc<Window>; 2])> {
        let size = if command.window == 0 {
            WINDOW
        } else {
            command.window
        };
        let windows = [(); 2].map(|()| Arc::new(Window::new(size)));
        let stdin = child.stdin.take().map(|pipe| self.input(number, pipe));
        let stdin = stdin.transpose()?;
        let granted = stdin.is_some().then_some(WINDOW);
        self.replies.send(
            number,
            &Reply::Started {
                window: granted.unwrap_or(0),
            },
        );
        let outputs = [
            (child.stdout.take().map(OwnedFd::from), Pipe::Stdout),
            (child.stderr.take().map(OwnedFd::from), Pipe::Stderr),
        ];
        let ends = outputs
            .into_iter()
            .zip(&windows)
            .filter_map(|((fd, pipe), window)| {
                let (replies, window) = (Arc::clone(&self.replies), Arc::clone(window));
                let from = std::fs::File::from(fd?);
                Some(in_a_thread(move || {
                    pass_on(from, number, pipe, &window, &replies);
                }))
            });
        let ends = ends.collect::<io::Result<Vec<_>>>()?;
        let (running, replies) = (Arc::clone(&self.running), Arc::clone(&self.replies));
        in_a_thread(move || {
            for end in ends {
                let _ = end.join();
            }
            let code = wait(child);
            lock(&running.all).remove(&number);
            let failed = reported(&report).filter(|_| code != 0);
            replies.send(number, &Reply::Exited { code, failed });
            running.ended.notify_all();
        })?;
        Ok((stdin, windows))
    }

    fn input(&self, number: u32, pipe: ChildStdin) -> io::Result<Input> {
        let received = Arc::new(Mutex::new(ReceiveWindow::new(WINDOW)));
        let (sender, receiver) = channel();
        let (window, replies) = (Arc::clone(&received), Arc::clone(&self.replies));
        in_a_thread(move || write_stdin(number, pipe, &receiver, &window, &replies))?;
        Ok(Input {
            received,
            bytes: sender,
        })
    }

    /// Passes bytes on to a command; none at their end.
    ///
    /// # Errors
    /// If the client sent more than it was granted.
    pub fn stdin(&self, number: u32, bytes: Vec<u8>) -> io::Result<()> {
        let mut all = lock(&self.running.all);
        // The command may have ended.
        let Some(handle) = all.get_mut(&number) else {
            return Ok(());
        };
        if bytes.is_empty() {
            handle.stdin = None;
        } else if let Some(stdin) = &handle.stdin {
            let taken = lock(&stdin.received).received(bytes.len());
            taken.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let _ = stdin.bytes.send(bytes);
        }
        Ok(())
    }

    /// Lets more of an output be sent.
    pub fn credit(&self, number: u32, stream: Stream, bytes: u32) {
        if let Some(handle) = lock(&self.running.all).get(&number) {
            let [stdout, stderr] = &handle.windows;
            match stream {
                Stream::Stdout => stdout.grant(bytes),
                Stream::Stderr => stderr.grant(bytes),
            }
        }
    }

    /// Returns whether a command of this number runs.
    pub fn has(&self, number: u32) -> bool {
        lock(&self.running.all).contains_key(&number)
    }

    /// Sends a command a signal.
    pub fn signal(&self, number: u32, signal: i32) {
        let signal = Signal::from_named_raw(signal);
        if let Some((handle, signal)) = lock(&self.running.all).get(&number).zip(signal) {
            handle.signal(signal);
        }
    }

    /// Ends all commands.
    pub fn end(&self) {
        let mut all = lock(&self.running.all);
        for signal in [Signal::TERM, Signal::KILL] {
            for handle in all.values_mut() {
                handle.stdin = None;
                handle.signal(signal);
                // Nothing takes its output any more.
                handle
                    .windows
                    .iter()
                    .for_each(|window| window.grant(u32::MAX));
            }
            let is_left = |all: &mut HashMap<u32, Handle>| !all.is_empty();
            let waited = self.running.ended.wait_timeout_while(all, GRACE, is_left);
            all = lock::ignore_poison(waited).0;
        }
    }
}

impl Handle {
    fn signal(&self, signal: Signal) {
        // It may have ended.
        let _ = pidfd_send_signal(&self.process, signal);
    }
}

impl Window {
    fn new(open: u32) -> Self {
        Self {
            open: Mutex::new(open),
            opened: Condvar::new(),
        }
    }

    fn grant(&self, bytes: u32) {
        let mut open = lock(&self.open);
        *open = open.saturating_add(bytes);
        self.opened.notify_all();
    }

    /// Waits until bytes may be sent; returns how many.
    fn wait(&self) -> usize {
        let open = self.opened.wait_while(lock(&self.open), |open| *open == 0);
        *lock::ignore_poison(open) as usize
    }

    fn take(&self, bytes: usize) {
        let mut open = lock(&self.open);
        *open = open.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
    }
}

/// Runs `work` in a thread. The client's other commands go on if there can be none.
fn in_a_thread(work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().spawn(work)
}

/// Sends the client an output to its end.
fn pass_on(mut from: impl Read, number: u32, pipe: Pipe, window: &Window, replies: &Replies) {
    let mut buffer = vec![0; MAX_DATA];
    loop {
        let most = window.wait().min(MAX_DATA);
        let room = buffer.get_mut(..most).unwrap_or_default();
        let Ok(Some(bytes)) = piece(&mut from, room) else {
            break;
        };
        window.take(bytes.len());
        replies.send_data(number, pipe, bytes);
    }
    replies.send_end(number, pipe);
}

/// Writes what the client sends to a command's stdin.
fn write_stdin(
    number: u32,
    mut pipe: ChildStdin,
    bytes: &Receiver<Vec<u8>>,
    window: &Mutex<ReceiveWindow>,
    replies: &Replies,
) {
    for piece in bytes {
        // What nothing reads any more is taken all the same.
        let _ = pipe.write_all(&piece);
        if let Some(credit) = lock(window).handed_on(piece.len()) {
            replies.send(number, &Reply::Credit { bytes: credit });
        }
    }
}

/// Returns why a command failed, from its report.
fn reported(report: &File) -> Option<Failed> {
    let mut bytes = vec![0; REPORT];
    let count = report.read_at(&mut bytes, 0).ok()?;
    report::last(bytes.get(..count)?)
}

/// Waits for a process that has closed its outputs.
fn wait(mut child: Child) -> i32 {
    match child.wait() {
        Ok(status) => status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()),
        Err(_) => -1,
    }
}
