//! The connections of clients: how many there are, and which makes room for another.
//!
//! A client whose request was let in keeps its connection; one that says nothing, or nothing that it may say, has it
//! for as long as there is room. So silence keeps nothing from anyone.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Response;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

use super::pace::Pace;
use super::places::{Account, Place};
use super::problem::Problem;

/// Most connections at a time, and of an address of another machine. A command that is watched has one.
pub const CONNECTIONS: usize = 2048;
const FROM_ONE: usize = 1024;

/// How long a client may take for its first byte.
const FIRST: Duration = Duration::from_secs(10);

/// How long a client may read nothing of what waits for it; also too little of a reply that is no stream of events.
const UNREAD: Duration = Duration::from_secs(120);

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
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn set_used(&self, is_used: bool) {
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

/// A request, until its reply is sent, and what is kept for it.
#[derive(Debug)]
pub struct Call {
    connection: Arc<Connection>,
    account: OnceLock<Account>,
    held: Mutex<Vec<Place>>,
}

impl Call {
    pub fn new(connection: &Arc<Connection>) -> Self {
        Self {
            connection: Arc::clone(connection),
            account: OnceLock::new(),
            held: Mutex::default(),
        }
    }

    /// Notes that the client may do what it asks for.
    pub fn let_in(&self) {
        self.connection.set_used(true);
    }

    /// Sets on whose account it is.
    pub fn charge(&self, account: Account) {
        // It is one sandbox's.
        let _ = self.account.set(account);
    }

    /// Keeps room for so many bytes of it.
    pub async fn make_room(&self, bytes: usize) -> Result<(), Problem> {
        if let Some(place) = self.room(bytes).await? {
            self.keep(place);
        }
        Ok(())
    }

    /// Waits for room for so many bytes that are kept for less long than it; None if they need none.
    pub async fn room(&self, bytes: usize) -> Result<Option<Place>, Problem> {
        match self.account.get() {
            Some(account) => account.room(bytes).await,
            None => Ok(None),
        }
    }

    /// Keeps a place until the reply is sent.
    pub fn keep(&self, place: Place) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.push(place);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.connection.set_used(false);
    }
}

/// A reply that its client reads at some rate. Others, as those of commands, may wait for what it does with them.
#[derive(Clone, Copy, Debug)]
pub struct Paced;

/// How a connection's client has to read the reply that it gets.
#[derive(Clone, Debug)]
pub struct Reading(Arc<Mutex<Pace>>);

impl Reading {
    /// Begins a reply.
    pub fn begin<T>(&self, reply: &Response<T>) {
        *self.lock() = match reply.extensions().get() {
            Some(Paced) => Pace::new(UNREAD),
            None => Pace::steady(UNREAD),
        };
    }

    fn lock(&self) -> MutexGuard<'_, Pace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's bytes. Silence before the first one, and bytes that are not read, end it.
#[derive(Debug)]
pub struct Patient {
    stream: TcpStream,
    /// Until the first byte has come.
    first: Option<Pin<Box<Sleep>>>,
    /// While the client has to read before more can be written.
    reading: Reading,
}

impl Patient {
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            first: Some(Box::pin(sleep(FIRST))),
            reading: Reading(Arc::new(Mutex::new(Pace::steady(UNREAD)))),
        }
    }

    /// Returns what its replies are noted in.
    pub fn reading(&self) -> Reading {
        self.reading.clone()
    }

    /// Returns what became of a write, unless it waits for too long.
    fn written(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut pace = self.reading.lock();
        if let Poll::Ready(written) = written {
            pace.moved(*written.as_ref().unwrap_or(&0));
            return Poll::Ready(written);
        }
        ready!(pace.poll_late(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        match &mut self.first {
            Some(_) if read.is_ready() => self.first = None,
            Some(first) => {
                ready!(first.as_mut().poll(context));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            None => {}
        }
        read
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, data);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, data);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
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
        let held: Vec<_> = (0..CONNECTIONS)
            .map(|_| Arc::new(all.enter(HERE).unwrap()))
            .collect();
        let call = Call::new(&held[0]);
        call.let_in();
        let _other = all.enter(HERE).unwrap();
        assert!(!is_given_up(&held[0]));
        assert!(is_given_up(&held[1]));
        // After its reply it is the one that was used last.
        drop(call);
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
        let held: Vec<_> = (0..FROM_ONE)
            .map(|_| Arc::new(all.enter(at(1)).unwrap()))
            .collect();
        let calls: Vec<_> = held.iter().map(Call::new).collect();
        calls.iter().for_each(Call::let_in);
        assert!(all.enter(at(1)).is_none());
        all.enter(at(2)).unwrap();
        drop(calls);
        all.enter(at(1)).unwrap();
        assert!(is_given_up(&held[0]));
    }
}
