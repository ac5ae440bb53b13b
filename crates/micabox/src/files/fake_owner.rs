//! An owner for tests, which answers as they say.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use micabox_ground::lock;
use micabox_owner::protocol::frame::Pipe;
use micabox_owner::protocol::{Decoder, Exec, Frame, Reply, Request, frame, preamble};
use micabox_wire::ExitStatus;
use tempfile::TempDir;

/// What is received of a client, but for its greeting, and answered; false to hang up.
type Answer = dyn FnMut(&mut Connection, u32, Request) -> bool + Send;

/// An owner. A thread serves each connection.
pub struct FakeOwner {
    directory: TempDir,
    events: Mutex<Receiver<Event>>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    Connected,
    /// An operation is to be performed.
    Performs,
    Disconnected,
}

/// A client's connection.
pub struct Connection(UnixStream);

impl FakeOwner {
    /// Starts one that keeps connections.
    pub fn start(
        mut answer: impl FnMut(&mut Connection, u32, Request) -> bool + Send + 'static,
    ) -> Self {
        Self::greeting(move |connection, number, request| {
            if request == Request::Uncount {
                connection.reply(number, &Reply::Uncounted);
                return true;
            }
            answer(connection, number, request)
        })
    }

    /// Starts one that answers greetings as it answers all else.
    pub fn greeting(
        answer: impl FnMut(&mut Connection, u32, Request) -> bool + Send + 'static,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("control")).unwrap();
        let (event, events) = channel();
        let answer: Arc<Mutex<Answer>> = Arc::new(Mutex::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = event.send(Event::Connected);
                let (answer, event) = (Arc::clone(&answer), event.clone());
                let connection = Connection(stream.unwrap());
                thread::spawn(move || connection.serve(&answer, &event));
            }
        });
        let events = Mutex::new(events);
        Self { directory, events }
    }

    /// The directory of its sandbox.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The next event, which is waited for.
    pub fn event(&self) -> Event {
        lock(&self.events).recv().unwrap()
    }

    /// All that has happened.
    pub fn events(&self) -> Vec<Event> {
        lock(&self.events).try_iter().collect()
    }

    /// Waits until it receives an operation.
    pub fn performs(&self) {
        while self.event() != Event::Performs {}
    }

    /// Waits until a client is disconnected.
    pub fn disconnected(&self) {
        while self.event() != Event::Disconnected {}
    }
}

impl Connection {
    fn serve(mut self, answer: &Mutex<Answer>, event: &Sender<Event>) {
        self.send(&preamble());
        let mut decoder = Decoder::<Request>::default();
        let mut buffer = [0; 4096];
        'connection: while let Ok(count @ 1..) = self.0.read(&mut buffer) {
            decoder.push(&buffer[..count]);
            while let Some(Frame::Message(number, request)) = decoder.next_frame().unwrap() {
                let is_exec = matches!(request, Request::Exec(_));
                let goes_on = lock(answer)(&mut self, number, request);
                // The test may be over.
                let _ = is_exec.then(|| event.send(Event::Performs));
                if !goes_on {
                    break 'connection;
                }
            }
        }
        drop(self);
        let _ = event.send(Event::Disconnected);
    }

    /// The same connection.
    pub fn again(&self) -> Self {
        Self(self.0.try_clone().unwrap())
    }

    pub fn send(&mut self, bytes: &[u8]) {
        // A client may have hung up.
        let _ = self.0.write_all(bytes);
    }

    pub fn encode(number: u32, reply: &Reply, to: &mut Vec<u8>) {
        frame::encode(number, reply, to);
    }

    pub fn reply(&mut self, number: u32, reply: &Reply) {
        let mut bytes = Vec::new();
        Self::encode(number, reply, &mut bytes);
        self.send(&bytes);
    }

    pub fn data(&mut self, number: u32, data: &[u8]) {
        let mut bytes = Vec::new();
        frame::encode_data(number, Pipe::Stdout, data, &mut bytes);
        self.send(&bytes);
    }

    /// Performs the operation of this number, whose reply is the number.
    pub fn perform(&mut self, number: u32) {
        self.data(number, &number.to_le_bytes());
        self.reply(number, &exited(0));
    }
}

/// A request of this user, by which a test knows it again.
pub fn named(user: &str) -> Exec {
    Exec {
        user: user.to_owned(),
        ..Exec::default()
    }
}

/// The end of a command.
pub fn exited(status: i32) -> Reply {
    Reply::Exited {
        status: ExitStatus::Exited(status),
        timed_out: false,
        unwritten: None,
        info: None,
    }
}
