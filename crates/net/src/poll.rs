//! Waits for events on many descriptors with epoll.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// Maximum number of events per wait.
const BATCH: usize = 128;

/// What a descriptor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The guest's frames.
    Link,
    /// The request to stop.
    Control,
    /// A TCP connection's socket.
    Tcp(Id),
    /// A published TCP port.
    TcpPort(Id),
    /// A socket with datagrams for the guest.
    Datagram(Id),
    /// A published UDP port.
    UdpPort(Id),
    /// A question to a resolver.
    Dns(Id),
}

/// A number that is never reused: an event that arrives late matches no entry.
pub(crate) type Id = u64;

/// What happened to a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) token: Token,
    /// There is something to read, an end or an error included.
    pub(crate) readable: bool,
    /// There is room to write, or an error.
    pub(crate) writable: bool,
}

/// An epoll instance whose descriptors report each change once (edge-triggered): the receiver of an
/// event must continue until the descriptor would block, or remember the event.
#[derive(Debug)]
pub(crate) struct Poll {
    epoll: OwnedFd,
    last_id: Id,
}

const KINDS: u64 = 8;

impl Token {
    fn pack(self) -> u64 {
        let (kind, id) = match self {
            Self::Link => (0, 0),
            Self::Control => (1, 0),
            Self::Tcp(id) => (2, id),
            Self::TcpPort(id) => (3, id),
            Self::Datagram(id) => (4, id),
            Self::UdpPort(id) => (5, id),
            Self::Dns(id) => (6, id),
        };
        id * KINDS + kind
    }

    fn unpack(packed: u64) -> Option<Self> {
        let id = packed / KINDS;
        Some(match packed % KINDS {
            0 => Self::Link,
            1 => Self::Control,
            2 => Self::Tcp(id),
            3 => Self::TcpPort(id),
            4 => Self::Datagram(id),
            5 => Self::UdpPort(id),
            6 => Self::Dns(id),
            _ => return None,
        })
    }
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            last_id: 0,
        })
    }

    /// Returns a new number.
    pub(crate) fn next_id(&mut self) -> Id {
        self.last_id += 1;
        self.last_id
    }

    /// Reports events of a descriptor until it is closed.
    pub(crate) fn add(&self, descriptor: impl AsFd, token: Token) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(token.pack());
        Ok(epoll::add(&self.epoll, descriptor, data, flags)?)
    }

    /// Waits for events, at most for `timeout`, and replaces those in `events` with them.
    pub(crate) fn wait(
        &self,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        events.clear();
        let timeout = timeout.map(|timeout| {
            // Milliseconds, rounded up: waking a little early would mean waking twice.
            let rounded = timeout.as_millis().saturating_add(1).min(3_600_000);
            Timespec {
                tv_sec: (rounded / 1000).try_into().unwrap_or(3600),
                tv_nsec: i64::try_from(rounded % 1000).unwrap_or(0) * 1_000_000,
            }
        });
        let mut batch = Vec::with_capacity(BATCH);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut batch),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        events.extend(batch.iter().filter_map(|event: &epoll::Event| {
            let either = EventFlags::ERR | EventFlags::HUP;
            let flags = event.flags;
            Some(Event {
                token: Token::unpack(event.data.u64())?,
                readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP | either),
                writable: flags.intersects(EventFlags::OUT | either),
            })
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_from_epoll_unchanged() {
        for token in [
            Token::Link,
            Token::Control,
            Token::Tcp(1),
            Token::TcpPort(2),
            Token::Datagram(3),
            Token::UdpPort(u64::MAX / KINDS),
            Token::Dns(0),
        ] {
            assert_eq!(Token::unpack(token.pack()), Some(token));
        }
        assert_eq!(Token::unpack(7), None);
    }
}
