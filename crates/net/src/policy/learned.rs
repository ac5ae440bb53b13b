//! The names that each address was an answer for.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use micabox_spec::network::Name;

/// Maximum number of answers kept; the one that expires first makes room.
const MAX_ANSWERS: usize = 4096;

/// The shortest time an answer is kept: programs keep addresses longer than the TTL, and connect to
/// them again.
const AT_LEAST: Duration = Duration::from_secs(600);

/// The longest time an answer is kept.
const AT_MOST: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Default)]
pub(super) struct Learned {
    /// Few names share an address, so each has a list.
    answers: HashMap<Ipv4Addr, Vec<Answer>>,
    count: usize,
}

#[derive(Debug)]
struct Answer {
    name: Name,
    until: Instant,
}

impl Learned {
    pub(super) fn add(&mut self, name: &Name, address: Ipv4Addr, ttl: Duration, now: Instant) {
        let until = now + ttl.clamp(AT_LEAST, AT_MOST);
        let answers = self.answers.entry(address).or_default();
        if let Some(known) = answers.iter_mut().find(|answer| answer.name == *name) {
            known.until = known.until.max(until);
            return;
        }
        answers.push(Answer {
            name: name.clone(),
            until,
        });
        self.count += 1;
        if self.count > MAX_ANSWERS {
            self.make_room(now);
        }
    }

    /// Removes the expired answers, or else those that expire first.
    fn make_room(&mut self, now: Instant) {
        let all = self.answers.values().flatten();
        let soonest = all.map(|answer| answer.until).min().unwrap_or(now).max(now);
        for answers in self.answers.values_mut() {
            answers.retain(|answer| answer.until > soonest);
        }
        self.answers.retain(|_, answers| !answers.is_empty());
        self.count = self.answers.values().map(Vec::len).sum();
    }

    /// Returns the names that resolved to this address, if their answers have not expired.
    pub(super) fn names(&self, address: Ipv4Addr, now: Instant) -> impl Iterator<Item = &Name> {
        let answers = self.answers.get(&address).into_iter().flatten();
        answers
            .filter(move |answer| answer.until > now)
            .map(|answer| &answer.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learned_addresses_expire_and_make_room() {
        let mut learned = Learned::default();
        let name = Name::from_text("a.example").unwrap();
        let start = Instant::now();
        let address = Ipv4Addr::from_bits;
        for n in 0..MAX_ANSWERS as u32 {
            let ttl = AT_LEAST + Duration::from_secs(u64::from(n));
            learned.add(&name, address(n), ttl, start);
        }
        assert_eq!(learned.count, MAX_ANSWERS);
        assert_eq!(learned.names(address(0), start).count(), 1);
        let later = start + AT_LEAST;
        assert_eq!(learned.names(address(0), later).count(), 0);
        assert_eq!(learned.names(address(1), later).count(), 1);
        learned.add(&name, address(u32::MAX), AT_MOST, later);
        assert!(learned.count <= MAX_ANSWERS);
        assert_eq!(learned.names(address(u32::MAX), later).count(), 1);
        // Learned again, kept longer.
        learned.add(&name, address(u32::MAX), AT_MOST, later + AT_LEAST);
        let end = later + AT_MOST;
        assert_eq!(learned.names(address(u32::MAX), end).count(), 1);
        assert_eq!(learned.names(address(u32::MAX), end + AT_LEAST).count(), 0);
    }
}
