//! The guest's resolver: the gateway, which forwards queries to the host's resolvers.
//!
//! Queries for names that the policy denies are refused and not forwarded. From the answers for
//! names that rules mention, the policy learns the addresses.
//!
//! The guest has no other resolver, so the proxy is what a C library is with several: one that fails
//! is followed by the next, and the guest gets a failure only when all have failed.

pub mod fuzzing;
mod message;
mod question;
mod resolvers;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::io::Io;
use crate::packet::send_udp;
use crate::poll::Id;
use message::{Code, Query, refuse_malformed};
use question::{Question, Step};
pub(crate) use resolvers::{PORT, Resolvers};

/// Bytes of the longest message.
const MAX_MESSAGE: usize = 65535;

#[derive(Debug)]
pub(crate) struct Proxy {
    questions: HashMap<Id, Question>,
    /// Questions to which resolvers may have sent something.
    ready: BTreeSet<Id>,
    /// Maximum number of questions.
    most: usize,
    buffer: Vec<u8>,
}

impl Proxy {
    /// Makes a proxy for at most `most` questions at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            questions: HashMap::new(),
            ready: BTreeSet::new(),
            most,
            buffer: vec![0; MAX_MESSAGE],
        }
    }

    /// Handles a query from the guest.
    pub(crate) fn receive(&mut self, io: &mut Io, guest_port: u16, message: &[u8]) {
        let Some(query) = Query::parse(message) else {
            if let Some(refusal) = refuse_malformed(message) {
                answer(io, guest_port, &refusal);
            }
            return;
        };
        let allowed = match &query.name {
            Some(name) => io.policy.allows_name(name),
            None => io.policy.is_open(),
        };
        if !allowed {
            return answer(io, guest_port, &query.fail(Code::REFUSED));
        }
        let mut known = self.questions.values();
        if known.any(|question| question.is(guest_port, &query)) {
            return; // The guest is impatient; its answer will come.
        }
        if self.questions.len() >= self.most {
            return answer(io, guest_port, &query.fail(Code::SERVER_FAILURE));
        }
        let id = io.poll.next_id();
        let question = Question::new(query, guest_port, io.now);
        self.questions.insert(id, question);
        self.step(io, id, Question::go_on);
    }

    /// Notes that a resolver may have sent something.
    pub(crate) fn event(&mut self, id: Id) {
        if self.questions.contains_key(&id) {
            self.ready.insert(id);
        }
    }

    /// Passes answers on as far as the link has room, and asks other resolvers where one failed or
    /// takes long.
    pub(crate) fn advance(&mut self, io: &mut Io) {
        while io.link.has_room()
            && let Some(id) = self.ready.pop_first()
        {
            let mut buffer = std::mem::take(&mut self.buffer);
            self.step(io, id, |question, io, id| {
                question.read(io, id, &mut buffer)
            });
            self.buffer = buffer;
        }
        let late = |(id, question): (&Id, &Question)| (question.until <= io.now).then_some(*id);
        let late: Vec<Id> = self.questions.iter().filter_map(late).collect();
        for id in late {
            if io.link.has_room() {
                self.step(io, id, Question::go_on);
            }
        }
    }

    /// Takes a step with a question, and answers the guest if it was the last one.
    fn step(&mut self, io: &mut Io, id: Id, step: impl FnOnce(&mut Question, &mut Io, Id) -> Step) {
        let Some(question) = self.questions.get_mut(&id) else {
            return;
        };
        if let Step::Over(message) = step(question, io, id) {
            answer(io, question.guest_port, &message);
            self.questions.remove(&id);
            self.ready.remove(&id);
        }
    }

    /// Returns the time until another resolver is to be asked or a question is given up; None without
    /// questions, and while the link has no room.
    pub(crate) fn quiet_for(&self, io: &Io) -> Option<Duration> {
        let times = self.questions.values().map(|question| question.until);
        let next = times.min().filter(|_| io.link.has_room())?;
        Some(next.saturating_duration_since(io.now))
    }
}

fn answer(io: &mut Io, guest_port: u16, message: &[u8]) {
    let gateway = io.link.addresses().gateway;
    send_udp(&mut io.link, gateway, PORT, guest_port, message);
}
