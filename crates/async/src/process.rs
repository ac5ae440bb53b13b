//! A command that runs.

use std::sync::Arc;

use micabox::{Error, ExecOptions, ExitStatus, Finished, Lost, Stdio, TtySize};
use micabox_owner::protocol::frame::{self, Pipe};
use micabox_owner::protocol::{Attach, Exec, Failure, Place, Request, Stream};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{oneshot, watch};

use crate::command::{Begun, Entry, Exit, Grants, Input, Parting, Sink};
use crate::link::Link;
use crate::pieces::Take;
use crate::streams::{Output, Stdin};

/// A command that runs. When it, its streams and its [handles](Handle) are dropped, the command is
/// killed, with what it has started; not if it is [detached](ExecOptions::detach), was
/// [left](Process::leave), or was [attached](crate::Commands::attach) to.
#[derive(Debug)]
pub struct Process {
    /// The command's stdin, if it is [piped](Stdio::Piped) and no other client has it.
    pub stdin: Option<Stdin>,
    /// The command's stdout, or its terminal's output, if it is piped.
    pub stdout: Option<Output>,
    /// The command's stderr, if it is piped; empty with a terminal.
    pub stderr: Option<Output>,
    pid: u32,
    has_terminal: bool,
    handle: Handle,
}

/// A handle for everything but a command's streams; can be cloned and sent to other tasks.
#[derive(Clone, Debug)]
pub struct Handle {
    running: Arc<Running>,
}

/// A command's number on its connection. Parts from the command when it is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    link: Arc<Link>,
    number: u32,
    end: watch::Receiver<Option<Result<Exit, Failure>>>,
    /// Its stdin, if that may come from here.
    input: Option<Arc<Input>>,
}

/// How a command is begun.
pub(crate) enum Begin {
    Exec(Box<Exec>),
    /// By attaching to a command of any client: to this process, or the first command.
    Attach(Option<u32>),
}

/// Both ends of an output: where the connection puts it, and what a reader needs.
type Reader = (Take, Arc<Grants>);

impl Process {
    /// Requests a command, and waits until it runs.
    pub(crate) async fn start(
        link: &Arc<Link>,
        begin: Begin,
        mut options: ExecOptions,
    ) -> Result<Self, Error> {
        let mut descriptors = Vec::new();
        let window = options.output_window();
        let stdin = std::mem::take(&mut options.stdin).place(&mut descriptors);
        let input = stdin.is_none().then(Input::new);
        let stdin = stdin.unwrap_or(Place::Frames);
        let mut output = |stdio: Stdio, stream: Stream| match stdio.place(&mut descriptors) {
            Some(place) => (place, None, None),
            None => {
                let (sink, pieces, grants) = Sink::new(stream, window);
                (Place::Frames, Some(sink), Some((pieces, grants)))
            }
        };
        let (stdout, stdout_sink, stdout_reader) =
            output(std::mem::take(&mut options.stdout), Stream::Stdout);
        let (stderr, stderr_sink, stderr_reader) =
            output(std::mem::take(&mut options.stderr), Stream::Stderr);

        let (request, terminal, parting) = match begin {
            Begin::Exec(exec) => {
                let terminal = exec.tty.is_some();
                let exec = Exec {
                    stdin,
                    stdout,
                    stderr,
                    window,
                    ..options.request(*exec)
                };
                (Request::Exec(Box::new(exec)), terminal, Parting::Kill)
            }
            Begin::Attach(pid) => {
                let attach = Attach {
                    pid,
                    stdin,
                    stdout,
                    stderr,
                    window,
                };
                (Request::Attach(attach), false, Parting::Release)
            }
        };
        let (begun, started) = oneshot::channel();
        let (ending, end) = watch::channel(None);
        let entry = Entry {
            begun: Some(begun),
            end: ending,
            stdin: input.clone(),
            stdout: stdout_sink,
            stderr: stderr_sink,
            parting,
            abandoned: None,
        };
        // From here on, dropping the future parts from the command.
        let running = Arc::new(Running {
            number: link.start(&request, entry, descriptors)?,
            link: Arc::clone(link),
            end,
            input: input.clone(),
        });
        let Begun {
            pid,
            has_terminal,
            has_stdin,
        } = started.await.map_err(|_| Lost::closed())??;
        if options.detach && parting == Parting::Kill {
            link.part_later(running.number, Parting::Leave);
        }
        let ends_stdin = parting == Parting::Kill && !options.detach;
        if let Some(input) = input.as_ref().filter(|_| !has_stdin) {
            // It is another client's.
            input.end();
        }
        let output = |reader: Option<Reader>| {
            reader.map(|(pieces, grants)| Output::new(pieces, grants, Arc::clone(&running)))
        };
        Ok(Self {
            stdin: input
                .filter(|_| has_stdin)
                .map(|input| Stdin::new(input, ends_stdin, Arc::clone(&running))),
            stdout: output(stdout_reader),
            stderr: output(stderr_reader),
            pid,
            has_terminal: terminal || has_terminal,
            handle: Handle { running },
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

    /// Returns a handle for other tasks.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits for the command's end, as [`Handle::wait`].
    ///
    /// # Errors
    /// As [`Handle::wait`].
    pub async fn wait(&self) -> Result<ExitStatus, Error> {
        self.handle.wait().await
    }

    /// Closes stdin, reads stdout and stderr until their ends, and waits for the command's end.
    ///
    /// # Errors
    /// [`Error::Lost`] if the sandbox ends first.
    pub async fn finish(mut self) -> Result<Finished, Error> {
        if let Some(mut stdin) = self.stdin.take() {
            stdin.end();
        }
        let (stdout, stderr) = tokio::join!(rest(self.stdout.take()), rest(self.stderr.take()));
        // Reading fails only if the sandbox is gone, for which this has the reason.
        let status = self.wait().await?;
        let system = |source| Error::System {
            what: "reading a command's output",
            source,
        };
        Ok(Finished {
            status,
            stdout: stdout.map_err(system)?,
            stderr: stderr.map_err(system)?,
        })
    }

    /// Leaves the command running with its stdin open, whatever becomes of this program: as when a user
    /// presses detach keys. The output of the command with the sandbox's lifetime goes to the sandbox's
    /// log from now on, that of any other command is dropped. For its remaining handles and streams it is
    /// as if the sandbox had ended.
    pub fn leave(self) {
        let running = &self.handle.running;
        running.link.part_later(running.number, Parting::Leave);
        running.link.part(running.number);
    }
}

impl Handle {
    /// Waits for the command's end. Any number of tasks may wait.
    ///
    /// # Errors
    /// [`Error::Lost`] if the sandbox ends first.
    pub async fn wait(&self) -> Result<ExitStatus, Error> {
        self.exit().await.map(|exit| exit.status)
    }

    /// Waits for the command's end. Returns whether it has ended because its
    /// [time](ExecOptions::timeout) was over, and without SIGKILL.
    ///
    /// # Errors
    /// As [`Handle::wait`].
    pub async fn timed_out(&self) -> Result<bool, Error> {
        self.exit().await.map(|exit| exit.timed_out)
    }

    /// Sends the command's process group a signal: its number on Linux, 1 to 64. The command with the
    /// sandbox's lifetime is sent it alone, as with Docker.
    pub fn signal(&self, signal: i32) {
        self.running.send_request(&Request::Signal { signal });
    }

    /// Sends SIGKILL, as [`Handle::signal`].
    pub fn kill(&self) {
        const KILL: i32 = 9;
        self.signal(KILL);
    }

    /// Sets the size of the command's terminal.
    pub fn resize(&self, size: TtySize) {
        self.running.send_request(&Request::Resize(size));
    }

    /// Ends the command's stdin, if that comes from here, also while something is written to it: the write then fails
    /// with [`BrokenPipe`](std::io::ErrorKind::BrokenPipe).
    pub fn end_stdin(&self) {
        self.running.end_stdin();
    }

    /// Returns how the command has ended, if it has.
    ///
    /// # Errors
    /// As [`Handle::wait`].
    pub fn try_wait(&self) -> Result<Option<ExitStatus>, Error> {
        match self.running.end.borrow().as_ref() {
            Some(Ok(exit)) => Ok(Some(exit.status)),
            Some(Err(failure)) => Err(failure.clone().into()),
            None if self.running.end.has_changed().is_err() => Err(Lost::closed().into()),
            None => Ok(None),
        }
    }

    async fn exit(&self) -> Result<Exit, Error> {
        let mut end = self.running.end.clone();
        let end = end.wait_for(Option::is_some).await;
        match end.map_err(|_| Lost::closed())?.as_ref() {
            Some(Ok(exit)) => Ok(*exit),
            Some(Err(failure)) => Err(failure.clone().into()),
            None => Err(Lost::closed().into()),
        }
    }
}

impl Running {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Sends a message about the command, unless it is over.
    pub(crate) fn send_request(&self, request: &Request) {
        self.link.send_request(self.number, request);
    }

    /// Sends bytes of its stdin.
    pub(crate) fn send(&self, frames: Vec<u8>) {
        self.link.send(frames);
    }

    /// Ends its stdin, unless that was done.
    pub(crate) fn end_stdin(&self) {
        if self.input.as_ref().is_some_and(|input| input.end()) {
            let mut bytes = Vec::new();
            frame::encode_end(self.number, Pipe::Stdin, &mut bytes);
            self.send(bytes);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.link.part(self.number);
    }
}

/// Reads a stream to its end.
pub(crate) async fn rest(stream: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        stream.read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}
