//! A command as its connection sees it: where its messages and bytes go.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use micabox::ExitStatus;
use micabox_ground::lock;
use micabox_owner::protocol::frame::{self, Pipe};
use micabox_owner::protocol::{Failure, Reply, Request, Stream};
use micabox_wire::{ReceiveWindow, SendWindow, WindowError};
use tokio::sync::{mpsc, oneshot, watch};

use crate::link::Packet;
use crate::pieces::{Put, Take, pieces};

/// A command that was requested and is not over.
pub(crate) struct Entry {
    /// Resolves the future of its start; none once it has started.
    pub(crate) begun: Option<oneshot::Sender<Result<Begun, Failure>>>,
    pub(crate) end: watch::Sender<Option<Result<Exit, Failure>>>,
    pub(crate) stdin: Option<Arc<Input>>,
    pub(crate) stdout: Option<Sink>,
    pub(crate) stderr: Option<Sink>,
    /// What becomes of it when nothing here has it any more.
    pub(crate) parting: Parting,
    /// If nothing has it any more, and it has not started yet: what keeps the connection until it has.
    pub(crate) abandoned: Option<mpsc::UnboundedSender<Packet>>,
}

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) pid: u32,
    /// Whether it has a terminal: known of one that was attached to.
    pub(crate) has_terminal: bool,
    /// Whether its stdin comes from here.
    pub(crate) has_stdin: bool,
}

/// How a command has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    pub(crate) status: ExitStatus,
    pub(crate) timed_out: bool,
}

/// What becomes of a command when nothing here has it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parting {
    /// It is killed.
    Kill,
    /// It continues, with its stdin open.
    Leave,
    /// It is another client's.
    Release,
}

/// Where an output goes: to its reader, while there is one.
pub(crate) struct Sink {
    pieces: Put,
    grants: Arc<Grants>,
}

/// What the owner may send of an output.
#[derive(Debug)]
pub(crate) struct Grants {
    stream: Stream,
    window: Mutex<ReceiveWindow>,
}

/// What may be sent to a command's stdin.
#[derive(Debug)]
pub(crate) struct Input(Mutex<InputState>);

#[derive(Debug)]
struct InputState {
    window: SendWindow,
    /// Nothing reads it any more, or it was ended here.
    is_closed: bool,
    was_ended: bool,
    waker: Option<Waker>,
}

/// What is to be done after a message.
pub(crate) enum After {
    Nothing,
    /// The command is over.
    Remove,
    /// The command is over for this client: [`Parting::frames`] must be sent.
    Part,
}

impl Parting {
    /// Makes the last messages about a command.
    pub(crate) fn frames(self, number: u32) -> Vec<u8> {
        const KILL: i32 = 9;
        let mut bytes = Vec::new();
        let last = match self {
            Self::Kill => {
                frame::encode(number, &Request::Signal { signal: KILL }, &mut bytes);
                // Otherwise its end waits until its output was read.
                Request::Release
            }
            Self::Leave => Request::Leave,
            Self::Release => Request::Release,
        };
        frame::encode(number, &last, &mut bytes);
        bytes
    }
}

impl Entry {
    /// Handles a message about the command.
    ///
    /// # Errors
    /// The owner breaks the protocol.
    pub(crate) fn reply(&mut self, reply: Reply) -> Result<After, WindowError> {
        match reply {
            Reply::Started { pid, window } => {
                let has_stdin = self.stdin.is_some();
                return self.start(pid, false, has_stdin, window);
            }
            Reply::Attached {
                pid,
                tty,
                stdin,
                window,
            } => return self.start(pid, tty, stdin, window),
            Reply::Credit { bytes } => {
                if let Some(stdin) = &self.stdin {
                    stdin.grant(bytes)?;
                }
            }
            Reply::StdinClosed => {
                if let Some(stdin) = &self.stdin {
                    stdin.close();
                }
            }
            Reply::Exited {
                status, timed_out, ..
            } => {
                for sink in [&self.stdout, &self.stderr].into_iter().flatten() {
                    sink.pieces.end();
                }
                self.end.send_replace(Some(Ok(Exit { status, timed_out })));
                return Ok(After::Remove);
            }
            Reply::Detached => {
                // Nothing reads the descriptor that a copy of its output goes to.
                const PIPE: i32 = 13;
                self.end.send_replace(Some(Ok(Exit {
                    status: ExitStatus::Signaled(PIPE),
                    timed_out: false,
                })));
                return Ok(After::Remove);
            }
            Reply::Failed(failure) => {
                match self.begun.take() {
                    Some(begun) => _ = begun.send(Err(failure)),
                    None => _ = self.end.send_replace(Some(Err(failure))),
                }
                return Ok(After::Remove);
            }
            _ => {}
        }
        Ok(After::Nothing)
    }

    fn start(
        &mut self,
        pid: u32,
        has_terminal: bool,
        has_stdin: bool,
        window: u32,
    ) -> Result<After, WindowError> {
        if let Some(stdin) = &self.stdin {
            stdin.grant(window)?;
        }
        let begun = Begun {
            pid,
            has_terminal,
            has_stdin,
        };
        if let Some(waiting) = self.begun.take() {
            // Whether it is still awaited, `abandoned` says.
            let _ = waiting.send(Ok(begun));
        }
        Ok(if self.abandoned.is_some() {
            After::Part
        } else {
            After::Nothing
        })
    }

    /// Handles bytes of an output. Returns what is granted for them if nothing reads it any more.
    ///
    /// # Errors
    /// The owner breaks the protocol.
    pub(crate) fn data(
        &mut self,
        pipe: Pipe,
        data: Vec<u8>,
    ) -> Result<Option<Request>, WindowError> {
        let sink = match pipe {
            Pipe::Stdout => &self.stdout,
            Pipe::Stderr => &self.stderr,
            Pipe::Stdin => return Ok(None),
        };
        let Some(sink) = sink else {
            return Ok(None);
        };
        let count = data.len();
        lock(&sink.grants.window).received(count)?;
        if count == 0 {
            sink.pieces.end();
            return Ok(None);
        }
        Ok(if sink.pieces.push(data) {
            None
        } else {
            sink.grants.handed_on(count)
        })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(stdin) = &self.stdin {
            stdin.close();
        }
    }
}

impl Sink {
    /// Makes a sink, the pieces that come out of it, and what is granted for them.
    pub(crate) fn new(stream: Stream, window: u32) -> (Self, Take, Arc<Grants>) {
        let (pieces, reader) = pieces();
        let grants = Arc::new(Grants {
            stream,
            window: Mutex::new(ReceiveWindow::new(window)),
        });
        let sink = Self {
            pieces,
            grants: Arc::clone(&grants),
        };
        (sink, reader, grants)
    }
}

impl Grants {
    /// Accounts for bytes that are not held any more. Returns the message that grants as many, when
    /// it is worth one.
    pub(crate) fn handed_on(&self, count: usize) -> Option<Request> {
        let bytes = lock(&self.window).handed_on(count)?;
        Some(Request::Credit {
            stream: self.stream,
            bytes,
        })
    }
}

impl Input {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(InputState {
            window: SendWindow::new(0),
            is_closed: false,
            was_ended: false,
            waker: None,
        })))
    }

    /// Notes that it is ended here: what is written waits no more. Returns false if it was before.
    pub(crate) fn end(&self) -> bool {
        let mut state = lock(&self.0);
        state.is_closed = true;
        wake(state.waker.take());
        !std::mem::replace(&mut state.was_ended, true)
    }

    /// Takes room for up to `wanted` bytes, of which there is at least one. None when nothing reads
    /// them any more.
    pub(crate) fn poll_take(
        &self,
        context: &mut Context<'_>,
        wanted: usize,
    ) -> Poll<Option<usize>> {
        let mut state = lock(&self.0);
        if state.is_closed {
            return Poll::Ready(None);
        }
        let count = wanted.min(state.window.available());
        if count == 0 || state.window.take(count).is_err() {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Some(count))
    }

    fn grant(&self, bytes: u32) -> Result<(), WindowError> {
        let mut state = lock(&self.0);
        state.window.grant(bytes)?;
        wake(state.waker.take());
        Ok(())
    }

    fn close(&self) {
        let mut state = lock(&self.0);
        state.is_closed = true;
        wake(state.waker.take());
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
