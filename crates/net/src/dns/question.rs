//! A question of the guest's on its way through the resolvers.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use micabox_ground::random;

use super::message::{Code, Query, Verdict, is_truncated, set_id};
use crate::io::Io;
use crate::poll::{Id, Token};

/// How long a resolver may be silent before the next one is asked beside it.
const STEP: Duration = Duration::from_secs(2);

/// How long a question is kept: as long as the C library tries, twice five seconds (resolv.conf(5)).
const PATIENCE: Duration = Duration::from_secs(10);

/// A query, with the resolvers that were asked.
#[derive(Debug)]
pub(super) struct Question {
    query: Query,
    pub(super) guest_port: u16,
    /// Those that have not answered.
    asked: Vec<Asked>,
    /// The index of the resolver that is asked next.
    next: usize,
    /// The last answer of a resolver that failed.
    failure: Option<Vec<u8>>,
    /// When the next resolver is asked, or the question is given up.
    pub(super) until: Instant,
    end: Instant,
}

/// A resolver that was asked.
#[derive(Debug)]
struct Asked {
    /// A socket for each query, so that neither its port nor its identification can be guessed.
    socket: UdpSocket,
    id: u16,
    /// The resolver's index.
    resolver: usize,
}

/// What comes of a step.
#[derive(Debug)]
pub(super) enum Step {
    /// An answer is awaited.
    Waits,
    /// This is the guest's answer.
    Over(Vec<u8>),
}

impl Question {
    pub(super) fn new(query: Query, guest_port: u16, now: Instant) -> Self {
        Self {
            query,
            guest_port,
            asked: Vec::new(),
            next: 0,
            failure: None,
            until: now,
            end: now + PATIENCE,
        }
    }

    /// Whether it is this query from this port.
    pub(super) fn is(&self, guest_port: u16, query: &Query) -> bool {
        self.guest_port == guest_port && self.query == *query
    }

    /// Asks the next resolver that can be asked. Without one it waits for those that were asked, and
    /// is over when there are none or it has lasted too long.
    pub(super) fn go_on(&mut self, io: &mut Io, id: Id) -> Step {
        if io.now < self.end {
            while let Some(address) = io.resolvers.get(self.next, io.now) {
                let asked = Asked::ask(io, id, address, self.next, &self.query);
                self.next += 1;
                if let Ok(asked) = asked {
                    self.asked.push(asked);
                    self.until = self.end.min(io.now + STEP);
                    return Step::Waits;
                }
            }
            if !self.asked.is_empty() {
                self.until = self.end;
                return Step::Waits;
            }
        }
        let failure = self.failure.take();
        Step::Over(failure.unwrap_or_else(|| self.query.fail(Code::SERVER_FAILURE)))
    }

    /// Reads what the resolvers have sent.
    pub(super) fn read(&mut self, io: &mut Io, id: Id, buffer: &mut [u8]) -> Step {
        let mut has_failed = false;
        let mut at = 0;
        while let Some(asked) = self.asked.get(at) {
            match asked.socket.recv(buffer) {
                Ok(length) => {
                    let message = buffer.get_mut(..length).unwrap_or_default();
                    match self.query.judge(message, asked.id) {
                        Verdict::Foreign => continue,
                        Verdict::Answer => {
                            if is_truncated(message) {
                                io.resolvers.has_more(asked.resolver);
                            }
                            return Step::Over(self.learn(io, message));
                        }
                        Verdict::Failure(code) => {
                            set_id(message, self.query.id());
                            self.failure = Some(match code {
                                Some(code) => self.query.fail(code),
                                None => message.to_vec(),
                            });
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    at += 1;
                    continue;
                }
                // No resolver listens there.
                Err(_) => {}
            }
            self.asked.remove(at);
            has_failed = true;
        }
        if has_failed {
            self.go_on(io, id)
        } else {
            Step::Waits
        }
    }

    /// Learns the addresses in an answer, and returns it as the guest awaits it.
    fn learn(&self, io: &mut Io, message: &mut [u8]) -> Vec<u8> {
        if let Some(name) = &self.query.name {
            for (address, ttl) in self.query.addresses(message) {
                io.policy.learn(name, address, ttl, io.now);
            }
        }
        set_id(message, self.query.id());
        message.to_vec()
    }
}

impl Asked {
    fn ask(
        io: &Io,
        id: Id,
        address: SocketAddr,
        resolver: usize,
        query: &Query,
    ) -> io::Result<Self> {
        let any: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let number = u16::from_ne_bytes(random()?);
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_nonblocking(true)?;
        socket.connect(address)?;
        io.poll.add(&socket, Token::Dns(id))?;
        socket.send(&query.with_id(number))?;
        Ok(Self {
            socket,
            id: number,
            resolver,
        })
    }
}
