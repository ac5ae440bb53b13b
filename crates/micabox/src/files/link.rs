//! A connection that operations of a sandbox's files share, those that are over with their call.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use micabox_error::Error;
use micabox_ground::lock;
use micabox_owner::protocol::frame::Pipe;
use micabox_owner::protocol::{Exec, Frame, Reply, Request};
use micabox_owner::{Client, Lost, Sender};
use micabox_spec::CommandError;
use micabox_wire::ExitStatus;

/// Most bytes of an output. A guest may lie: one that sends more has its operation ended.
const MOST: usize = 128 << 10;

/// The number of the request that asks whether the connection may be kept.
const GREETING: u32 = 1;

/// A connection. One thread receives for all that wait, and none does while nothing waits.
#[derive(Debug)]
pub(super) struct Link {
    sender: Mutex<Sender>,
    state: Mutex<State>,
    changed: Condvar,
}

/// What a connection is good for after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// For the next one.
    Next,
    /// For those that are under way. Its end ends others.
    NoOther,
    /// For those that are under way, and the owner, of an earlier version, takes each connection for use of the sandbox.
    Refused,
}

#[derive(Debug)]
struct State {
    /// None while a thread receives.
    client: Option<Client>,
    received: Received,
}

/// What has been received.
#[derive(Debug)]
struct Received {
    last: u32,
    requests: HashMap<u32, Answer>,
    is_lost: bool,
    is_refused: bool,
    /// Whether something runs for a request that is over here: the connection's end ends it.
    is_spent: bool,
}

/// What has come about a request.
#[derive(Debug, Default)]
struct Answer {
    end: Option<Result<ExitStatus, Error>>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// An operation that is over.
#[derive(Debug)]
pub(super) struct Over {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// A request under way, which is forgotten at the end of its call.
struct Open<'a> {
    link: &'a Link,
    number: u32,
}

/// A thread's turn to receive. The next thread has it after this one, also if this one unwinds.
struct Turn<'a> {
    link: &'a Link,
    client: Option<Client>,
}

impl Link {
    /// Connects to the owner of the sandbox whose state is in `directory`.
    pub(super) fn connect(directory: &Path, name: &str) -> Result<Self, Error> {
        // Without an owner there is no sandbox.
        let client = Client::connect(directory);
        let client = client.map_err(|_| Error::DoesNotRun(name.to_owned()))?;
        // Its answer comes before that to the first operation.
        let asked = client.request(GREETING, &Request::Uncount, &[]);
        asked.map_err(|_| Lost::closed())?;
        Ok(Self {
            sender: Mutex::new(client.sender()),
            state: Mutex::new(State {
                client: Some(client),
                received: Received {
                    last: GREETING,
                    requests: HashMap::new(),
                    is_lost: false,
                    is_refused: false,
                    is_spent: false,
                },
            }),
            changed: Condvar::new(),
        })
    }

    /// Takes what has arrived, such as the owner's end. Returns what the connection is good for.
    pub(super) fn look(&self) -> Use {
        let mut state = lock(&self.state);
        // A thread that receives does so itself.
        if state.receive() {
            self.changed.notify_all();
        }
        state.received.good_for()
    }

    /// Returns what the connection is good for, as far as that was received.
    pub(super) fn good_for(&self) -> Use {
        lock(&self.state).received.good_for()
    }

    /// Makes a request of a command, and waits for its end.
    ///
    /// # Errors
    /// Those of its start; [`Error::BadReply`] if its output is too long; [`Error::Lost`] if the connection ends first.
    pub(super) fn perform(&self, exec: Exec) -> Result<Over, Error> {
        let open = self.open();
        let request = Request::Exec(Box::new(exec));
        let sent = lock(&self.sender).request(open.number, &request);
        if let Err(error) = sent {
            return Err(match error.kind() {
                io::ErrorKind::InvalidInput => CommandError::TooLong.into(),
                _ => Lost::closed().into(),
            });
        }
        let mut state = lock(&self.state);
        loop {
            if let Some(answer) = state.received.over(open.number) {
                let status = answer.end.ok_or_else(Lost::closed)??;
                return Ok(Over {
                    status,
                    stdout: answer.stdout,
                    stderr: answer.stderr,
                });
            }
            state = self.wait(state);
        }
    }

    /// Begins a request.
    fn open(&self) -> Open<'_> {
        let number = lock(&self.state).received.open();
        Open { link: self, number }
    }

    /// Receives, or waits while another thread does.
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let client = state.client.take();
        if client.is_none() {
            let waited = self.changed.wait(state);
            return waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        Turn { link: self, client }.receive()
    }
}

impl<'a> Turn<'a> {
    /// Waits for the next message, and takes all that has arrived.
    fn receive(mut self) -> MutexGuard<'a, State> {
        let first = self.client.as_mut().map(|client| client.receive(None));
        let mut state = lock(&self.link.state);
        match first {
            Some(Ok(frame)) => state.received.take(frame),
            Some(Err(_)) | None => state.received.is_lost = true,
        }
        state.client = self.client.take();
        state.receive();
        self.link.changed.notify_all();
        state
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // It unwinds, and what it has received is of no use without the rest.
        if let Some(client) = self.client.take() {
            let mut state = lock(&self.link.state);
            state.client = Some(client);
            state.received.is_lost = true;
            self.link.changed.notify_all();
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.link.state);
        state.received.requests.remove(&self.number);
        state.received.is_spent |= std::thread::panicking();
    }
}

impl State {
    /// Takes all that has arrived; false while another thread receives.
    fn receive(&mut self) -> bool {
        let Some(client) = &mut self.client else {
            return false;
        };
        while !self.received.is_lost {
            match client.try_receive() {
                Ok(None) => break,
                Ok(frame) => self.received.take(frame),
                Err(_) => self.received.is_lost = true,
            }
        }
        true
    }
}

impl Received {
    fn good_for(&self) -> Use {
        match (self.is_refused, self.is_lost || self.is_spent) {
            (true, _) => Use::Refused,
            (false, true) => Use::NoOther,
            (false, false) => Use::Next,
        }
    }

    /// Returns a number for a request.
    fn open(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last > GREETING && !self.requests.contains_key(&self.last) {
                self.requests.insert(self.last, Answer::default());
                return self.last;
            }
        }
    }

    /// Returns what has come about a request, if nothing more comes.
    fn over(&mut self, number: u32) -> Option<Answer> {
        let Some(answer) = self.requests.get_mut(&number) else {
            return Some(Answer::default());
        };
        (answer.end.is_some() || self.is_lost).then(|| std::mem::take(answer))
    }

    /// Notes what a message has about a request.
    fn take(&mut self, frame: Option<Frame<Reply>>) {
        let Some(Frame::Message(number, _) | Frame::Data(number, ..)) = frame else {
            return;
        };
        let Some(answer) = self.requests.get_mut(&number) else {
            let failed = matches!(frame, Some(Frame::Message(_, Reply::Failed(_))));
            self.is_refused |= number == GREETING && failed;
            return;
        };
        // What comes after the end is about nothing.
        if answer.end.is_some() {
            return;
        }
        match frame {
            Some(Frame::Message(_, Reply::Exited { status, .. })) => answer.end = Some(Ok(status)),
            Some(Frame::Message(_, Reply::Failed(failure))) => {
                answer.end = Some(Err(failure.into()));
            }
            Some(Frame::Data(_, pipe, data)) => {
                let output = match pipe {
                    Pipe::Stderr => &mut answer.stderr,
                    Pipe::Stdin | Pipe::Stdout => &mut answer.stdout,
                };
                output.extend(data);
                if output.len() > MOST {
                    answer.end = Some(Err(Error::BadReply));
                    // A request to end it could wait for the owner, which waits until this thread receives.
                    self.is_spent = true;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;
    use std::thread;

    use super::super::fake_owner::{Connection, FakeOwner, exited, named};
    use super::*;

    #[test]
    fn an_output_that_is_too_long_ends_its_operation_and_no_other_one_of_the_connection() {
        let mut held = None;
        let owner = FakeOwner::start(move |connection, number, request| {
            match request {
                Request::Exec(exec) if exec.user == "other" => held = Some(number),
                Request::Exec(_) => {
                    // More than there is room for on the way: nothing reads requests until all is received.
                    for _ in 0..64 {
                        connection.data(number, &[0; 32 << 10]);
                    }
                    connection.perform(held.unwrap_or_default());
                }
                other => panic!("{other:?}"),
            }
            true
        });
        let link = Link::connect(owner.directory(), "box").unwrap();
        thread::scope(|scope| {
            let other = scope.spawn(|| link.perform(named("other")));
            owner.performs();
            let too_long = link.perform(named("long"));
            assert!(matches!(too_long, Err(Error::BadReply)), "{too_long:?}");
            assert_eq!(link.good_for(), Use::NoOther);
            assert_eq!(other.join().unwrap().unwrap().stdout.len(), 4);
        });
        drop(link);
        owner.disconnected();
    }

    #[test]
    fn the_first_end_of_an_operation_is_the_one_that_counts() {
        let owner = FakeOwner::start(|connection, number, request| {
            if matches!(request, Request::Exec(_)) {
                let mut bytes = Vec::new();
                for status in [0, 1] {
                    Connection::encode(number, &exited(status), &mut bytes);
                }
                // They are received at once.
                connection.send(&bytes);
            }
            true
        });
        let link = Link::connect(owner.directory(), "box").unwrap();
        for _ in 0..10 {
            let over = link.perform(Exec::default()).unwrap();
            assert_eq!(over.status, ExitStatus::Exited(0));
        }
    }

    #[test]
    fn a_thread_that_unwinds_while_it_receives_leaves_no_other_one_waiting() {
        let owner = FakeOwner::start(|_, _, _| true);
        let link = Link::connect(owner.directory(), "box").unwrap();
        let (takes, taken) = channel();
        let (unwinds, unwind) = channel::<()>();
        thread::scope(|scope| {
            let link = &link;
            scope.spawn(move || {
                catch_unwind(AssertUnwindSafe(|| {
                    let _open = link.open();
                    let client = lock(&link.state).client.take();
                    let _turn = Turn { link, client };
                    takes.send(()).unwrap();
                    unwind.recv().unwrap();
                    panic!("this is for the test");
                }))
                .unwrap_err();
            });
            taken.recv().unwrap();
            let waits = scope.spawn(|| link.perform(Exec::default()));
            owner.performs();
            unwinds.send(()).unwrap();
            assert!(matches!(waits.join().unwrap(), Err(Error::Lost(_))));
        });
        assert_eq!(link.good_for(), Use::NoOther);
        assert!(lock(&link.state).received.requests.is_empty());
    }
}
