//! A command in a sandbox: a connection to the sandbox's owner, and pipes for its streams.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use micabox_error::Error;
use micabox_ground::lock;
use micabox_operations::{ExecOptions, Finished, Stdio};
use micabox_owner::protocol::{Attach, Exec, Failure, Frame, Info, Place, Reply, Request};
use micabox_owner::{Client, Lost};
use micabox_spec::CommandError;
use micabox_wire::{ExitStatus, TtySize};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// The number of the one command of a connection.
const COMMAND: u32 = 1;

/// How a connection gets its command.
pub(crate) enum Begin {
    /// By starting it.
    Exec(Exec),
    /// In a copy: by reattaching the original's first command.
    Reattach(Exec),
    /// By attaching to a command of any client: to this process, or the first command.
    Attach(Option<u32>),
}

/// A running command. Dropping it leaves the command running, with its stdin closed and its output
/// discarded.
#[derive(Debug)]
pub struct Process {
    /// The command's stdin, if it is a pipe.
    pub stdin: Option<Stdin>,
    /// The command's stdout, or its terminal, if it is a pipe.
    pub stdout: Option<Output>,
    /// The command's stderr, if it is a pipe; empty with a terminal.
    pub stderr: Option<Output>,
    pid: u32,
    has_terminal: bool,
    handle: Handle,
}

/// A handle for everything but a command's streams; can be cloned and sent to other threads.
#[derive(Clone, Debug)]
pub struct Handle {
    command: Arc<Command>,
}

/// The write end of a command's stdin. A write blocks while the command does not read. A write
/// after the command has closed its stdin or has ended fails with `BrokenPipe`. Dropping it closes
/// the stdin.
#[derive(Debug)]
pub struct Stdin {
    pipe: PipeWriter,
    _command: Arc<Command>,
}

/// The read end of a command's output. It ends when the command has ended. A command whose output
/// is not read blocks; dropping this discards the rest.
#[derive(Debug)]
pub struct Output {
    pipe: PipeReader,
    _command: Arc<Command>,
}

/// A command's connection. The command is released when the last reference is dropped.
#[derive(Debug)]
struct Command {
    /// A duplicate for poll(2), used without the lock.
    socket: OwnedFd,
    is_detached: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    client: Client,
    end: Option<Result<ExitStatus, Failure>>,
    timed_out: bool,
    unwritten: Option<String>,
    info: Option<Info>,
}

impl Drop for Command {
    fn drop(&mut self) {
        let state = lock(&self.state);
        if state.end.is_none() && !self.is_detached {
            // Without an owner there is nothing to release.
            let _ = state.client.request(COMMAND, &Request::Release, &[]);
        }
    }
}

/// The owner's end of a stream, and this process's end if it is a pipe.
struct Ends<Pipe> {
    place: Place,
    theirs: Option<OwnedFd>,
    ours: Option<Pipe>,
}

impl<Pipe> Ends<Pipe> {
    fn new(stdio: Stdio, pipe: impl FnOnce() -> io::Result<(OwnedFd, Pipe)>) -> io::Result<Self> {
        let mut given = Vec::new();
        if let Some(place) = stdio.place(&mut given) {
            return Ok(Self {
                place,
                theirs: given.pop(),
                ours: None,
            });
        }
        let (theirs, ours) = pipe()?;
        // Only the owner uses this end, and its event loop must not block.
        fcntl_setfl(&theirs, fcntl_getfl(&theirs)? | OFlags::NONBLOCK)?;
        Ok(Self {
            place: Place::Descriptor,
            theirs: Some(theirs),
            ours: Some(ours),
        })
    }
}

/// Makes a pipe for an output: the owner's end and ours.
fn output() -> io::Result<(OwnedFd, PipeReader)> {
    io::pipe().map(|(reader, writer)| (writer.into(), reader))
}

impl Process {
    /// Requests a command of the sandbox's owner, and waits until it runs.
    pub(crate) fn start(
        mut client: Client,
        begin: Begin,
        mut options: ExecOptions,
    ) -> Result<Self, Error> {
        let pipes = |source| Error::System {
            what: "making a command's pipes",
            source,
        };
        let stdin = Ends::new(mem::take(&mut options.stdin), || {
            io::pipe().map(|(reader, writer)| (reader.into(), writer))
        });
        let stdin = stdin.map_err(pipes)?;
        let stdout = Ends::new(mem::take(&mut options.stdout), output).map_err(pipes)?;
        let stderr = Ends::new(mem::take(&mut options.stderr), output).map_err(pipes)?;
        let is_detached = options.detach;
        let complete = |exec: Exec| {
            Box::new(Exec {
                stdin: stdin.place,
                stdout: stdout.place,
                stderr: stderr.place,
                ..options.request(exec)
            })
        };
        let (request, has_terminal) = match begin {
            Begin::Exec(exec) => {
                let tty = exec.tty.is_some();
                (Request::Exec(complete(exec)), tty)
            }
            Begin::Reattach(exec) => {
                let tty = exec.tty.is_some();
                (Request::Reattach(complete(exec)), tty)
            }
            Begin::Attach(pid) => {
                let attach = Attach {
                    pid,
                    stdin: stdin.place,
                    stdout: stdout.place,
                    stderr: stderr.place,
                    ..Attach::default()
                };
                (Request::Attach(attach), false)
            }
        };
        let theirs = [&stdin.theirs, &stdout.theirs, &stderr.theirs];
        let descriptors: Vec<_> = theirs.into_iter().flatten().map(AsFd::as_fd).collect();
        let mut ask = || {
            client.request(COMMAND, &request, &descriptors)?;
            let reply = client.reply(COMMAND, None)?;
            io::Result::Ok((client.as_fd().try_clone_to_owned()?, reply))
        };
        // Without an owner there is no sandbox.
        let (socket, reply) = ask().map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Error::from(CommandError::TooLong),
            _ => Lost::closed().into(),
        })?;
        let (pid, has_terminal) = match reply {
            Some(Reply::Started { pid, .. }) => (pid, has_terminal),
            Some(Reply::Attached { pid, tty, .. }) => (pid, tty),
            Some(Reply::Failed(failure)) => return Err(failure.into()),
            _ => return Err(Lost::closed().into()),
        };
        let command = Arc::new(Command {
            socket,
            is_detached,
            state: Mutex::new(State {
                client,
                end: None,
                timed_out: false,
                unwritten: None,
                info: None,
            }),
        });
        let output = |pipe: Option<PipeReader>| {
            pipe.map(|pipe| Output {
                pipe,
                _command: Arc::clone(&command),
            })
        };
        Ok(Self {
            stdin: stdin.ours.map(|pipe| Stdin {
                pipe,
                _command: Arc::clone(&command),
            }),
            stdout: output(stdout.ours),
            stderr: output(stderr.ours),
            pid,
            has_terminal,
            handle: Handle { command },
        })
    }

    /// Returns whether the command has a terminal.
    pub fn has_terminal(&self) -> bool {
        self.has_terminal
    }

    /// Returns its process ID inside the sandbox.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns a handle for other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits for the command's end, as [`Handle::wait`].
    ///
    /// # Errors
    /// As [`Handle::wait`].
    pub fn wait(&self) -> Result<ExitStatus, Error> {
        self.handle.wait()
    }

    /// Closes stdin, reads stdout and stderr until their ends, and waits for the command's end.
    ///
    /// # Errors
    /// [`Error::Lost`] if the sandbox ends first.
    pub fn finish(mut self) -> Result<Finished, Error> {
        drop(self.stdin.take());
        let read = |output: Option<Output>| {
            let mut bytes = Vec::new();
            match output {
                Some(mut output) => output.read_to_end(&mut bytes).map(|_| bytes),
                None => Ok(bytes),
            }
        };
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        let (stdout, stderr) = std::thread::scope(|scope| {
            let stderr = scope.spawn(|| read(stderr));
            (read(stdout), stderr.join())
        });
        // Both fail only if the sandbox is gone, for which `wait` has the better error.
        let status = self.wait()?;
        let system = |source| Error::System {
            what: "reading a command's output",
            source,
        };
        Ok(Finished {
            status,
            stdout: stdout.map_err(system)?,
            stderr: stderr
                .unwrap_or_else(|_| Err(io::Error::other("the reading thread died")))
                .map_err(system)?,
        })
    }
}

impl Handle {
    /// Waits for the command's end.
    ///
    /// # Errors
    /// [`Error::Lost`] if the sandbox ends first.
    pub fn wait(&self) -> Result<ExitStatus, Error> {
        let status = self.wait_until(None)?;
        Ok(status.ok_or_else(Lost::closed)?)
    }

    /// Waits for the command's end for at most `timeout`; None if it still runs.
    ///
    /// # Errors
    /// [`Error::Lost`] if the sandbox ends first.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<ExitStatus>, Error> {
        // A deadline beyond the clock's range means none.
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Result<Option<ExitStatus>, Error> {
        loop {
            if let Some(end) = self.command.look() {
                return end.map(Some).map_err(Error::from);
            }
            // Several threads may wait here: all of them see the connection end with the command.
            let ready = micabox_owner::wait(self.command.socket.as_fd(), deadline);
            if !ready.map_err(|_| Lost::closed())? {
                return Ok(None);
            }
        }
    }

    /// Sends the command's process group a signal: its number on Linux, 1 to 64. The command with the
    /// sandbox's lifetime is sent it alone, as with Docker.
    pub fn signal(&self, signal: i32) {
        self.command.request(&Request::Signal { signal });
    }

    /// Sets the size of the command's terminal.
    pub fn resize(&self, size: TtySize) {
        self.command.request(&Request::Resize(size));
    }

    /// Of a command that this process is attached to: has its stdin end where the descriptor ends that it comes
    /// from here. Without this the command keeps it, for others that attach.
    pub fn end_stdin(&self) {
        // A command that has ended has no stdin.
        let _ = lock(&self.command.state).client.end_stdin(COMMAND);
    }

    /// Leaves the command running with its stdin open, whatever becomes of this process: as when a
    /// user presses detach keys. The output of the command with the sandbox's lifetime goes to the
    /// sandbox's log from now on, that of any other command is dropped. This handle has no command
    /// any more: its waits never end.
    pub fn leave(&self) {
        self.command.request(&Request::Leave);
    }

    /// Returns whether the command has ended because its [time](ExecOptions::timeout) was over, and
    /// without SIGKILL.
    pub fn timed_out(&self) -> bool {
        lock(&self.command.state).timed_out
    }

    /// Returns why the command's output could not be written to the descriptors that it was to go to, once it
    /// has ended; None if all was written, or if nothing was left that reads it.
    pub fn unwritten(&self) -> Option<String> {
        lock(&self.command.state).unwritten.clone()
    }

    /// Returns what was measured, once the command has ended; see [`ExecOptions::measure`].
    pub(crate) fn info(&self) -> Option<Info> {
        lock(&self.command.state).info.clone()
    }
}

impl AsFd for Handle {
    /// Returns a descriptor that is readable when [`Handle::wait_timeout`] may have a result.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.command.socket.as_fd()
    }
}

impl Command {
    /// Returns how the command ended, if it has.
    fn look(&self) -> Option<Result<ExitStatus, Failure>> {
        let mut state = lock(&self.state);
        while state.end.is_none() {
            match state.client.try_receive() {
                Ok(None) => return None,
                Ok(Some(Frame::Message(COMMAND, reply))) => match reply {
                    Reply::Exited {
                        status,
                        timed_out,
                        unwritten,
                        info,
                    } => {
                        state.end = Some(Ok(status));
                        state.timed_out = timed_out;
                        state.unwritten = unwritten;
                        state.info = info;
                    }
                    // Nothing reads the copy of its output.
                    Reply::Detached => state.end = Some(Ok(ExitStatus::Signaled(libc::SIGPIPE))),
                    Reply::Failed(failure) => state.end = Some(Err(failure)),
                    _ => {}
                },
                Ok(Some(_)) => {}
                Err(_) => state.end = Some(Err(Lost::closed().into())),
            }
            if state.end.is_some() {
                state.client.hang_up();
            }
        }
        state.end.clone()
    }

    fn request(&self, request: &Request) {
        // A command that has ended ignores requests.
        let _ = lock(&self.state).client.request(COMMAND, request, &[]);
    }
}

impl Read for Output {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.pipe.read(buffer)
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl Write for Stdin {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.pipe.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stdin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
