//! The connections of clients: how many there are, and which makes room for another.
//!
//! A client whose request was let in keeps its connection; one that says nothing, or nothing that it may say, has it
//! for as long as there is room. So silence keeps nothing from anyone.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use micabox_ground::lock;
use tokio::sync::Notify;

/// Most connections at a time, and of an address of another machine. A command that is watched has one.
pub const CONNECTIONS: usize = 2048;
const FROM_ONE: usize = 1024;

/// All connections.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<Open>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Open {
    last: u64,
    /// By number: the oldest first.
    all: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    address: IpAddr,
    /// Whether a request of it was let in.
    is_used: bool,
    /// Since when it is silent: a number that only grows.
    since: u64,
    end: Arc<Notify>,
}

/// A connection's place. It is free again when this is dropped.
#[derive(Debug)]
pub struct Connection {
    all: Arc<Connections>,
    number: u64,
    end: Arc<Notify>,
}

impl Connections {
    /// Waits until a connection can have a place.
    pub async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            if self.lock().has_room() {
                return;
            }
            changed.await;
        }
    }

    /// Takes a place for a connection, that of a silent one if there is no other; None if its address has too many.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Connection> {
        let mut open = self.lock();
        let ours = open.all.values().filter(|entry| entry.address == address);
        if !address.is_loopback() && ours.count() >= FROM_ONE && !open.end_one_of(address) {
            return None;
        }
        if open.all.len() >= CONNECTIONS {
            let busiest = open.busiest()?;
            open.end_one_of(busiest);
        }
        open.last += 1;
        let (number, end) = (open.last, Arc::new(Notify::new()));
        let entry = Entry {
            address,
            is_used: false,
            since: number,
            end: Arc::clone(&end),
        };
        open.all.insert(number, entry);
        Some(Connection {
            all: Arc::clone(self),
            number,
            end,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }
}

impl Open {
    fn has_room(&self) -> bool {
        self.all.len() < CONNECTIONS || self.all.values().any(|entry| !entry.is_used)
    }

    /// Returns the address with most silent connections.
    fn busiest(&self) -> Option<IpAddr> {
        let mut silent: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for entry in self.all.values().filter(|entry| !entry.is_used) {
            *silent.entry(entry.address).or_default() += 1;
        }
        let most = silent.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(address, _)| address)
    }

    /// Ends the connection of an address that is silent for longest; false if none is.
    fn end_one_of(&mut self, address: IpAddr) -> bool {
        let silent = self.all.iter();
        let silent = silent.filter(|(_, entry)| !entry.is_used && entry.address == address);
        let Some(number) = silent.min_by_key(|(_, entry)| entry.since).map(|(n, _)| *n) else {
            return false;
        };
        if let Some(entry) = self.all.remove(&number) {
            entry.end.notify_one();
        }
        true
    }
}

impl Connection {
    /// Waits until its place is needed by another.
    pub async fn given_up(&self) {
        self.end.notified().await;
    }

    /// Notes whether a request that was let in is answered on it.
    pub fn set_used(&self, is_used: bool) {
        let mut open = self.all.lock();
        open.last += 1;
        let since = open.last;
        if let Some(entry) = open.all.get_mut(&self.number) {
            entry.is_used = is_used;
            entry.since = since;
        }
        drop(open);
        if !is_used {
            self.all.changed.notify_one();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.lock().all.remove(&self.number);
        self.all.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn at(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn is_given_up(connection: &Connection) -> bool {
        let mut given_up = std::pin::pin!(connection.given_up());
        let mut context = Context::from_waker(std::task::Waker::noop());
        given_up.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn a_silent_connection_makes_room_and_one_that_is_used_does_not() {
        let all = Arc::new(Connections::default());
        let held: Vec<_> = (0..CONNECTIONS).map(|_| all.enter(HERE).unwrap()).collect();
        held[0].set_used(true);
        let _other = all.enter(HERE).unwrap();
        assert!(!is_given_up(&held[0]));
        assert!(is_given_up(&held[1]));
        // After its reply it is the one that was used last.
        held[0].set_used(false);
        let _another = all.enter(HERE).unwrap();
        assert!(!is_given_up(&held[0]));
        assert!(is_given_up(&held[2]));
        assert_eq!(all.lock().all.len(), CONNECTIONS);
    }

    #[test]
    fn the_address_with_most_silent_connections_makes_room() {
        let all = Arc::new(Connections::default());
        let honest = all.enter(at(1)).unwrap();
        let local: Vec<_> = (1..CONNECTIONS).map(|_| all.enter(HERE).unwrap()).collect();
        let _new = all.enter(at(2)).unwrap();
        assert!(!is_given_up(&honest));
        assert!(is_given_up(&local[0]));
    }

    #[test]
    fn an_address_of_another_machine_leaves_room_for_others() {
        let all = Arc::new(Connections::default());
        let held: Vec<_> = (0..FROM_ONE).map(|_| all.enter(at(1)).unwrap()).collect();
        held.iter().for_each(|connection| connection.set_used(true));
        assert!(all.enter(at(1)).is_none());
        all.enter(at(2)).unwrap();
        held.iter()
            .for_each(|connection| connection.set_used(false));
        all.enter(at(1)).unwrap();
        assert!(is_given_up(&held[0]));
    }
}
