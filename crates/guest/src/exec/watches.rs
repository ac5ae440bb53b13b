//! The sandbox's only inotify(7) instance. A user has few of them, and on this machine's own kernel they are root's, so
//! all processes that watch files share one.
//!
//! A process adds a watch itself, with its user's rights, and asks first: the agent then passes everything on to it
//! until it has said which watch is its own. Two that watch the same directory have the same watch, so only the agent
//! removes one: when it is no one's, and none is about to be added.

use std::collections::{BTreeSet, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{
    CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Bytes of events that are read at a time.
const BUFFER: usize = 64 << 10;

/// Bytes of an event without a name.
const LEAST: u64 = 16;

/// Most events that wait for a process, as many as the kernel itself keeps, and most bytes of them.
const WAITING: usize = 16_384;
const BYTES: usize = 1 << 20;

/// Bytes of a message: an event's numbers and a name.
const MESSAGE: usize = 512;

/// What a process says: a letter, and a watch.
const ADDING: u8 = b'+';
const ADDED: u8 = b'=';
const NOT_ADDED: u8 = b'!';
const REMOVED: u8 = b'-';
const ASKED: u8 = b'?';

/// What the agent says: that a watch may be added, or that all events so far have been passed on; or an event.
const ANSWER: u8 = b'.';
const EVENT: u8 = b'e';

/// The agent's side.
#[derive(Debug, Default)]
pub struct Watches {
    /// While there is a process that watches.
    inotify: Option<OwnedFd>,
    processes: Vec<Process>,
    /// Watches that may be no one's.
    left: BTreeSet<i32>,
}

/// A process that watches.
#[derive(Debug)]
struct Process {
    socket: OwnedFd,
    watches: BTreeSet<i32>,
    is_adding: bool,
    /// It waits for an answer; with true, for one after which it adds a watch.
    asks: Option<bool>,
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    is_over: bool,
}

/// A process's side.
#[derive(Debug)]
pub struct Watching {
    inotify: OwnedFd,
    socket: OwnedFd,
    early: VecDeque<Event>,
}

/// What inotify reports.
#[derive(Clone, Debug)]
pub struct Event {
    pub watch: i32,
    pub flags: ReadFlags,
    pub cookie: u32,
    pub name: Option<Vec<u8>>,
}

impl Watches {
    /// Lets a process that is about to be made watch.
    pub fn join(&mut self) -> Result<Watching, Errno> {
        let inotify = match self.inotify.take() {
            Some(inotify) => inotify,
            None => init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
        };
        let inotify = self.inotify.insert(inotify);
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let watching = Watching {
            inotify: rustix::io::fcntl_dupfd_cloexec(inotify, 3)?,
            socket: theirs,
            early: VecDeque::new(),
        };
        self.processes.push(Process {
            socket: ours,
            watches: BTreeSet::new(),
            is_adding: false,
            asks: None,
            waiting: VecDeque::new(),
            bytes: 0,
            is_over: false,
        });
        Ok(watching)
    }

    /// Returns what is to be waited for.
    pub fn sources(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let processes = self.processes.iter().map(|process| {
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, !process.waiting.is_empty());
            (process.socket.as_fd(), events)
        });
        let inotify = self.inotify.iter();
        processes.chain(inotify.map(|inotify| (inotify.as_fd(), PollFlags::IN)))
    }

    /// Receives what processes send, and passes on what has happened.
    pub fn turn(&mut self) {
        for process in &mut self.processes {
            process.receive(&mut self.left);
        }
        // An answer comes after all that happened before the question. What comes while this is read may wait.
        let inotify = self.inotify.as_ref();
        let bytes = inotify.and_then(|inotify| rustix::io::ioctl_fionread(inotify).ok());
        self.pass_on(bytes.unwrap_or(0));
        for process in &mut self.processes {
            process.answer();
            process.send();
        }
        self.processes.retain_mut(|process| {
            if process.is_over {
                self.left.append(&mut process.watches);
            }
            !process.is_over
        });
        self.remove();
        if self.processes.is_empty() {
            self.inotify = None;
            self.left.clear();
        }
    }

    /// Passes on as many events as there can be in `bytes`, and all that were read with them.
    fn pass_on(&mut self, bytes: u64) {
        let Some(inotify) = &self.inotify else {
            return;
        };
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(inotify, &mut buffer);
        let mut left = bytes / LEAST + 1;
        // The kernel has forgotten what is in the buffer.
        while left > 0 || !reader.is_buffer_empty() {
            left = left.saturating_sub(1);
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            let (watch, flags) = (event.wd(), event.events());
            let name = event.file_name().map(|name| name.to_bytes());
            let message = encode(watch, flags, event.cookie(), name.unwrap_or_default());
            let is_for_all = flags.contains(ReadFlags::QUEUE_OVERFLOW);
            for process in &mut self.processes {
                if is_for_all || process.is_adding || process.watches.contains(&watch) {
                    process.queue(message.clone());
                }
                if flags.contains(ReadFlags::IGNORED) {
                    process.watches.remove(&watch);
                }
            }
        }
    }

    /// Removes watches that are no one's.
    fn remove(&mut self) {
        if self.processes.iter().any(|process| process.is_adding) {
            return;
        }
        let Some(inotify) = &self.inotify else {
            return;
        };
        for watch in std::mem::take(&mut self.left) {
            let mut processes = self.processes.iter();
            if !processes.any(|process| process.watches.contains(&watch)) {
                // It may have ended by itself.
                let _ = remove_watch(inotify, watch);
            }
        }
    }
}

impl Process {
    /// Receives what the process sends, and notes watches that it does not need any more.
    fn receive(&mut self, left: &mut BTreeSet<i32>) {
        let mut message = [0; 5];
        loop {
            let read = recv(&self.socket, &mut message[..], RecvFlags::DONTWAIT);
            let [kind, watch @ ..] = match read {
                Ok((_, 5)) => message,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                _ => {
                    self.is_over = true;
                    return;
                }
            };
            let watch = i32::from_le_bytes(watch);
            match kind {
                ADDING => self.asks = Some(true),
                ASKED => self.asks = Some(false),
                ADDED => {
                    self.is_adding = false;
                    self.watches.insert(watch);
                }
                NOT_ADDED => self.is_adding = false,
                REMOVED => {
                    self.watches.remove(&watch);
                    left.insert(watch);
                }
                _ => {}
            }
        }
    }

    fn answer(&mut self) {
        if let Some(is_adding) = self.asks.take() {
            self.is_adding = is_adding;
            self.waiting.push_back(vec![ANSWER]);
        }
    }

    fn queue(&mut self, message: Vec<u8>) {
        if self.waiting.len() < WAITING && self.bytes < BYTES {
            self.bytes += message.len();
            self.waiting.push_back(message);
            return;
        }
        // The last one says that some are missing.
        let overflow = encode(-1, ReadFlags::QUEUE_OVERFLOW, 0, b"");
        if self.waiting.back() != Some(&overflow) {
            self.waiting.push_back(overflow);
        }
    }

    /// Sends what waits, as far as the process takes it.
    fn send(&mut self) {
        while let Some(message) = self.waiting.front() {
            match send(
                &self.socket,
                message,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(_) => {
                    self.bytes = self.bytes.saturating_sub(message.len());
                    self.waiting.pop_front();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return,
                Err(_) => {
                    self.is_over = true;
                    return;
                }
            }
        }
    }
}

impl Watching {
    /// Returns the descriptors that the process keeps.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.inotify.as_fd(), self.socket.as_fd()]
    }

    /// Watches a file from the working directory.
    pub fn add(&mut self, name: &[u8], flags: WatchFlags) -> Result<i32, Errno> {
        self.ask(ADDING)?;
        let added = add_watch(&self.inotify, name, flags);
        match added {
            Ok(watch) => self.send(ADDED, watch)?,
            Err(_) => self.send(NOT_ADDED, 0)?,
        }
        added
    }

    /// Ends a watch.
    pub fn remove(&mut self, watch: i32) {
        // An agent that is gone has no watches.
        let _ = self.send(REMOVED, watch);
    }

    /// Has all events that came before this call be among the next ones.
    pub fn flush(&mut self) -> Result<(), Errno> {
        self.ask(ASKED)
    }

    /// Waits for an event, or for `other` to be readable. Returns whether that is.
    pub fn wait(&self, other: Option<&impl AsFd>) -> Result<bool, Errno> {
        if !self.early.is_empty() {
            return Ok(false);
        }
        let mut sources = vec![PollFd::new(&self.socket, PollFlags::IN)];
        sources.extend(other.map(|other| PollFd::new(other, PollFlags::IN)));
        match poll(&mut sources, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let is_ready = |source: &PollFd<'_>| !source.revents().is_empty();
        Ok(sources.get(1).is_some_and(is_ready))
    }

    /// Returns the next event, if there is one.
    pub fn next(&mut self) -> Result<Option<Event>, Errno> {
        if let Some(event) = self.early.pop_front() {
            return Ok(Some(event));
        }
        loop {
            match self.receive(RecvFlags::DONTWAIT) {
                Ok(Some(event)) => return Ok(Some(event)),
                // An answer that nothing waits for.
                Ok(None) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Sends a message, and waits for the answer.
    fn ask(&mut self, what: u8) -> Result<(), Errno> {
        self.send(what, 0)?;
        while let Some(event) = self.receive(RecvFlags::empty())? {
            self.early.push_back(event);
        }
        Ok(())
    }

    fn send(&self, what: u8, watch: i32) -> Result<(), Errno> {
        let message = [&[what][..], &watch.to_le_bytes()].concat();
        let sent = || send(&self.socket, &message, SendFlags::NOSIGNAL);
        rustix::io::retry_on_intr(sent).map(drop)
    }

    /// Receives an event; None for an answer.
    fn receive(&self, flags: RecvFlags) -> Result<Option<Event>, Errno> {
        let mut message = [0; MESSAGE];
        let count = rustix::io::retry_on_intr(|| {
            recv(&self.socket, &mut message[..], flags).map(|(_, count)| count)
        })?;
        match message.get(..count) {
            Some([ANSWER]) => Ok(None),
            Some([EVENT, event @ ..]) => Event::of(event).map(Some).ok_or(Errno::PROTO),
            // The agent is gone.
            _ => Err(Errno::PIPE),
        }
    }
}

fn encode(watch: i32, flags: ReadFlags, cookie: u32, name: &[u8]) -> Vec<u8> {
    let numbers = [
        watch.to_le_bytes(),
        flags.bits().to_le_bytes(),
        cookie.to_le_bytes(),
    ];
    [&[EVENT][..], numbers.as_flattened(), name].concat()
}

impl Event {
    fn of(bytes: &[u8]) -> Option<Self> {
        let (numbers, name) = bytes.split_first_chunk::<12>()?;
        let [watch, flags, cookie] = *numbers.as_chunks::<4>().0 else {
            return None;
        };
        Some(Self {
            watch: i32::from_le_bytes(watch),
            flags: ReadFlags::from_bits_retain(u32::from_le_bytes(flags)),
            cookie: u32::from_le_bytes(cookie),
            name: (!name.is_empty()).then(|| name.to_vec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_came_while_others_were_counted_are_passed_on() {
        let mut watches = Watches::default();
        let watching = watches.join().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let watch = add_watch(&watching.inotify, directory.path(), WatchFlags::CREATE).unwrap();
        watches.processes[0].watches.insert(watch);
        for name in ["a", "b", "c"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        // They were counted before the first one came.
        watches.pass_on(0);
        assert_eq!(watches.processes[0].waiting.len(), 3);
    }
}
