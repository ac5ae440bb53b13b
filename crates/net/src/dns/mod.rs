//! The guest's resolver: the gateway, which forwards queries to the host's resolvers.
//!
//! Queries for names that the policy denies are refused and not forwarded. From the answers for
//! names that rules mention, the policy learns the addresses.

pub mod fuzzing;
mod message;
mod name;
mod resolvers;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use crate::io::Io;
use crate::packet::send_udp;
use crate::poll::{Id, Token};
use message::{Code, Query, set_id};
pub(crate) use name::Name;
pub(crate) use resolvers::{PORT, Resolvers};

/// Maximum number of open queries. The guest's resolver repeats the ones beyond.
const MAX_QUESTIONS: usize = 64;

/// How long to wait for a resolver. The C library repeats a query after five seconds.
const PATIENCE: Duration = Duration::from_secs(4);

/// Bytes of the longest message.
const MAX_MESSAGE: usize = 65535;

#[derive(Debug)]
pub(crate) struct Proxy {
    questions: HashMap<Id, Question>,
    buffer: Vec<u8>,
}

/// A query that has been sent to a resolver.
#[derive(Debug)]
struct Question {
    query: Query,
    guest_port: u16,
    /// A socket for each query, so that neither its port nor its identification can be guessed.
    socket: UdpSocket,
    id: u16,
    /// The resolver's index.
    resolver: usize,
    deadline: Instant,
}

impl Proxy {
    pub(crate) fn new() -> Self {
        Self {
            questions: HashMap::new(),
            buffer: vec![0; MAX_MESSAGE],
        }
    }

    /// Handles a query from the guest.
    pub(crate) fn receive(&mut self, io: &mut Io, guest_port: u16, message: &[u8]) {
        let Some(query) = Query::parse(message) else {
            return;
        };
        let allowed = match &query.name {
            Some(name) => io.policy.allows_name(name),
            None => io.policy.is_open(),
        };
        if !allowed {
            return answer(io, guest_port, &query.fail(Code::Refused));
        }
        if self.questions.len() < MAX_QUESTIONS {
            self.ask(io, query, guest_port, 0);
        }
    }

    /// Sends the query to the resolver with this index, or to the first after it that accepts it.
    fn ask(&mut self, io: &mut Io, query: Query, guest_port: u16, first: usize) {
        let mut resolver = first;
        while let Some(address) = io.resolvers.get(resolver, io.now) {
            let id = io.poll.next_id();
            let asked = random().and_then(|number| {
                let any = match address {
                    std::net::SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    std::net::SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                let socket = UdpSocket::bind((any, 0_u16) as (std::net::IpAddr, u16))?;
                socket.set_nonblocking(true)?;
                socket.connect(address)?;
                io.poll.add(&socket, Token::Dns(id))?;
                socket.send(&query.with_id(number))?;
                Ok((socket, number))
            });
            if let Ok((socket, number)) = asked {
                let question = Question {
                    query,
                    guest_port,
                    socket,
                    id: number,
                    resolver,
                    deadline: io.now + PATIENCE,
                };
                self.questions.insert(id, question);
                return;
            }
            resolver += 1;
        }
        answer(io, guest_port, &query.fail(Code::ServerFailure));
    }

    /// Handles the messages that a resolver may have sent.
    pub(crate) fn event(&mut self, io: &mut Io, id: Id) {
        let Some(question) = self.questions.get(&id) else {
            return;
        };
        loop {
            match question.socket.recv(&mut self.buffer) {
                Ok(length) => {
                    let message = self.buffer.get_mut(..length).unwrap_or_default();
                    if !question.query.is_answered_by(message, question.id) {
                        continue; // A forged response.
                    }
                    if let Some(name) = &question.query.name {
                        for (address, ttl) in question.query.addresses(message) {
                            io.policy.learn(name, address, ttl, io.now);
                        }
                    }
                    set_id(message, question.query.id());
                    answer(io, question.guest_port, message);
                    self.questions.remove(&id);
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // No resolver listens there.
                Err(_) => return self.ask_the_next(io, id),
            }
        }
    }

    fn ask_the_next(&mut self, io: &mut Io, id: Id) {
        if let Some(question) = self.questions.remove(&id) {
            let next = question.resolver + 1;
            self.ask(io, question.query, question.guest_port, next);
        }
    }

    /// Moves queries on to the next resolver when the current one took too long.
    pub(crate) fn advance(&mut self, io: &mut Io) {
        let late = |(id, question): (&Id, &Question)| (question.deadline <= io.now).then_some(*id);
        let late: Vec<Id> = self.questions.iter().filter_map(late).collect();
        for id in late {
            self.ask_the_next(io, id);
        }
    }

    /// Returns the time until a resolver's deadline; None without open queries.
    pub(crate) fn quiet_for(&self, now: Instant) -> Option<Duration> {
        let deadlines = self.questions.values().map(|question| question.deadline);
        Some(deadlines.min()?.saturating_duration_since(now))
    }
}

fn answer(io: &mut Io, guest_port: u16, message: &[u8]) {
    let gateway = io.link.addresses().gateway;
    send_udp(&mut io.link, gateway, PORT, guest_port, message);
}

fn random() -> io::Result<u16> {
    let mut bytes = [0; 2];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u16::from_ne_bytes(bytes))
}
