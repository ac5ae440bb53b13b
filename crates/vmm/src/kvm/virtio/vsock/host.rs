//! The host's side of sockets, as far as a process without paths has one: a listener that it was
//! given, an owner that connects for it, and one descriptor to wait for all of them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// Tokens of events that are not of connections, whose tokens come after these.
const LISTENER: u64 = 0;
const OWNER: u64 = 1;
pub(super) const FIRST_CONNECTION: u64 = 2;

/// Maximum bytes of the first line: `CONNECT` with the greatest number, and some spaces. A longer
/// line is invalid.
const LONGEST_GREETING: usize = 32;

/// The descriptors to the host.
#[derive(Debug)]
pub(crate) struct Host {
    /// Each descriptor once, edge-triggered.
    epoll: Epoll,
    listener: OwnedFd,
    owner: OwnedFd,
}

/// An event of the host.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A client has connected to the listener.
    Client,
    /// The owner has answered.
    Answer,
    /// A connection's stream is readable, or writable, or both.
    Stream {
        token: u64,
        /// Whether the other end is closed.
        hung_up: bool,
    },
}

/// The request in a client's first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Greeting {
    /// The line is not complete yet.
    Incomplete,
    /// A request for a port of the guest.
    Port(u32),
    /// The line is invalid.
    Invalid,
}

impl Host {
    /// Waits for `listener` and `owner`, which must not block. The owner's socket must preserve
    /// message boundaries.
    pub(crate) fn new(listener: OwnedFd, owner: OwnedFd) -> io::Result<Self> {
        let host = Self {
            epoll: Epoll::new()?,
            listener,
            owner,
        };
        host.add(host.listener.as_raw_fd(), EventSet::IN, LISTENER)?;
        host.add(host.owner.as_raw_fd(), EventSet::IN, OWNER)?;
        Ok(host)
    }

    fn add(&self, descriptor: RawFd, events: EventSet, token: u64) -> io::Result<()> {
        let events = events | EventSet::EDGE_TRIGGERED;
        let event = EpollEvent::new(events, token);
        self.epoll.ctl(ControlOperation::Add, descriptor, event)
    }

    /// Returns a descriptor that is readable when there are events.
    pub(super) fn source(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Watches a connection's stream until it is closed.
    pub(super) fn watch(&self, stream: &OwnedFd, token: u64) -> io::Result<()> {
        let events = EventSet::IN | EventSet::OUT | EventSet::READ_HANG_UP;
        self.add(stream.as_raw_fd(), events, token)
    }

    /// Returns some of the events since the last call; an empty list if there are no more.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut events = [EpollEvent::default(); 32];
        let count = self.epoll.wait(0, &mut events).unwrap_or_default();
        let events = events.iter().take(count).map(|event| match event.data() {
            LISTENER => Event::Client,
            OWNER => Event::Answer,
            token => Event::Stream {
                token,
                hung_up: event
                    .event_set()
                    .intersects(EventSet::HANG_UP | EventSet::ERROR),
            },
        });
        events.collect()
    }

    /// Accepts the next client.
    pub(super) fn accept(&self) -> Option<OwnedFd> {
        loop {
            match accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(client) => return Some(client),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return None,
            }
        }
    }

    /// Asks the owner to connect to the program that listens at `port` of the host. Returns false
    /// if the request can't be sent.
    pub(crate) fn ask(&self, port: u32) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        send(&self.owner, &port.to_le_bytes(), flags).is_ok()
    }

    /// Returns the owner's next answer: a stream, if a program listens.
    pub(crate) fn answer(&self) -> Option<Option<OwnedFd>> {
        match micabox_socket::receive_now(&self.owner, &mut [0], 1) {
            Ok(answer) if answer.bytes > 0 => Some(answer.descriptors.into_iter().next()),
            // It had a stream, which this process can't have.
            Err(Errno::MFILE) => Some(None),
            // No answer yet; or the owner is gone, and this process will end soon.
            Ok(_) | Err(_) => None,
        }
    }
}

/// Reads a client's first line, and no data behind it.
pub(super) fn greeting(client: &OwnedFd) -> Greeting {
    let mut bytes = [0; LONGEST_GREETING];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let length = match recv(client, &mut bytes, flags) {
        Ok((length, _)) if length > 0 => length,
        Err(Errno::AGAIN | Errno::INTR) => return Greeting::Incomplete,
        Ok(_) | Err(_) => return Greeting::Invalid,
    };
    let text = bytes.get(..length).unwrap_or_default();
    let Some(end) = text.iter().position(|byte| *byte == b'\n') else {
        return match length {
            LONGEST_GREETING => Greeting::Invalid,
            _ => Greeting::Incomplete,
        };
    };
    let mut line = [0; LONGEST_GREETING];
    let line = line.get_mut(..=end).unwrap_or_default();
    if recv(client, &mut *line, RecvFlags::DONTWAIT).is_err() {
        return Greeting::Invalid;
    }
    let text = std::str::from_utf8(line).unwrap_or_default();
    let mut words = text.split_ascii_whitespace();
    match (words.next(), words.next().map(str::parse), words.next()) {
        (Some(word), Some(Ok(port)), None) if word.eq_ignore_ascii_case("connect") => {
            Greeting::Port(port)
        }
        _ => Greeting::Invalid,
    }
}
