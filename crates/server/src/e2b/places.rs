//! How much of a thing clients may use at a time: those of one sandbox, and all.
//!
//! One that knows a sandbox's token, or only its ID, may do what it likes with what its sandbox may have; the others
//! have the rest.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use micabox_ground::lock;
use micabox_listen::CONNECTIONS;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::problem::{Kind, Problem};

/// How long a client may wait for a place.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that need no room of their own.
pub const SMALL: usize = 64 << 10;

/// The account of the API's clients, which is no sandbox's.
pub const OF_API: &str = "";

/// Sandboxes whose places are all free are forgotten when there are more than this.
const KEPT: usize = 64;

/// Most requests of all sandboxes' clients, and of the API's. Neither leave the other without a connection, and both
/// leave some to be told so.
const REQUESTS: u32 = 1408;
const API: u32 = 512;
const _: () = assert!(((REQUESTS + API) as usize) < CONNECTIONS);

/// What is bounded.
#[derive(Debug)]
pub struct Bounds {
    /// Requests of a sandbox's clients, for as long as their replies take.
    pub requests: Places,
    /// Requests of the API: those that only ask, and others.
    pub api: Places,
    /// Searches for a sandbox by clients that have not shown yet what they know, each in a thread.
    pub searches: Places,
    /// The same among all sandboxes, for an address of a file that names none.
    pub wide_searches: Places,
    pub commands: Places,
    /// Files on their way.
    pub transfers: Places,
    /// Connections to ports.
    pub ports: Places,
    pub watches: Places,
    /// Contexts of interpreters.
    pub contexts: Places,
    /// Sandboxes that are being made, each by a thread, for as long as its image is pulled.
    pub made: Places,
    /// KiB of what is kept for clients: bodies, lists, replies of interpreters.
    pub memory: Arc<Places>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            requests: Places::new("requests", 512, REQUESTS),
            api: Places::new("requests of the API", API / 4 * 3, API),
            searches: Places::new("searches", 4, 16),
            wide_searches: Places::new("searches", 2, 2),
            commands: Places::new("commands", 512, 1000),
            transfers: Places::new("transfers of files", 64, 256),
            ports: Places::new("connections to ports", 128, 512),
            watches: Places::new("watches", 64, 512),
            contexts: Places::new("contexts", 32, 1024),
            made: Places::new("sandboxes to make", 1024, 128),
            memory: Arc::new(Places::new(
                "KiB of requests and replies",
                64 << 10,
                256 << 10,
            )),
        }
    }
}

/// The places for one kind of thing.
#[derive(Debug)]
pub struct Places {
    what: &'static str,
    each: u32,
    all: u32,
    room: Arc<Semaphore>,
    /// By the sandboxes' IDs.
    of: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// Places that are taken. They are free again when this is dropped.
#[derive(Debug)]
pub struct Permit {
    _one: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Places {
    /// So many for each sandbox, and for all.
    pub fn new(what: &'static str, each: u32, all: u32) -> Self {
        Self {
            what,
            each,
            all,
            room: semaphore(all),
            of: Mutex::default(),
        }
    }

    /// Takes one, if there is one.
    pub fn take(&self, sandbox: &str) -> Result<Permit, Problem> {
        self.take_for(sandbox, "the sandbox")
    }

    /// The same for what is no sandbox, and has another name.
    pub fn take_for(&self, whose: &str, name: &str) -> Result<Permit, Problem> {
        let one = self.of(whose).try_acquire_owned();
        let one = one.map_err(|_| self.none(name, self.each))?;
        let all = Arc::clone(&self.room).try_acquire_owned();
        let all = all.map_err(|_| self.none("this server", self.all))?;
        Ok(Permit {
            _one: one,
            _all: all,
        })
    }

    /// Returns whether it is the sandbox itself that has none left.
    pub fn is_full_for(&self, sandbox: &str) -> bool {
        self.of(sandbox).available_permits() == 0
    }

    /// Waits for some.
    pub async fn wait(&self, sandbox: &str, count: u32) -> Result<Permit, Problem> {
        let one = self.of(sandbox).acquire_many_owned(count);
        let one = timeout(PATIENCE, one).await;
        let one = one.ok().and_then(Result::ok);
        let one = one.ok_or_else(|| self.none("the sandbox", self.each))?;
        let all = Arc::clone(&self.room).acquire_many_owned(count);
        let all = timeout(PATIENCE, all).await;
        let all = all.ok().and_then(Result::ok);
        let all = all.ok_or_else(|| self.none("this server", self.all))?;
        Ok(Permit {
            _one: one,
            _all: all,
        })
    }

    fn none(&self, whose: &str, most: u32) -> Problem {
        let message = format!("{whose} has {most} {} already", self.what);
        Problem::new(Kind::TooMany, message)
    }

    fn of(&self, sandbox: &str) -> Arc<Semaphore> {
        let mut of = lock(&self.of);
        if of.len() > KEPT && !of.contains_key(sandbox) {
            // Each place that is taken, or waited for, has one.
            of.retain(|_, places| Arc::strong_count(places) > 1);
        }
        let places = of.entry(sandbox.to_owned());
        Arc::clone(places.or_insert_with(|| semaphore(self.each)))
    }
}

/// The memory for a sandbox's clients.
#[derive(Clone, Debug)]
pub struct Account {
    memory: Arc<Places>,
    sandbox: String,
}

impl Account {
    pub fn new(bounds: &Bounds, sandbox: &str) -> Self {
        Self {
            memory: Arc::clone(&bounds.memory),
            sandbox: sandbox.to_owned(),
        }
    }

    /// Waits for room for so many bytes; None if they are too few to be counted.
    pub async fn room(&self, bytes: usize) -> Result<Option<Permit>, Problem> {
        if bytes <= SMALL {
            return Ok(None);
        }
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        self.memory.wait(&self.sandbox, kib).await.map(Some)
    }
}

fn semaphore(places: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(usize::try_from(places).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sandbox_leaves_places_for_others() {
        let places = Places::new("things", 2, 3);
        let first = places.take("a").unwrap();
        let _second = places.take("a").unwrap();
        let full = places.take("a").unwrap_err();
        assert_eq!(full.kind, Kind::TooMany);
        assert_eq!(full.message, "the sandbox has 2 things already");
        let _third = places.take("b").unwrap();
        let full = places.take("c").unwrap_err();
        assert_eq!(full.message, "this server has 3 things already");
        drop(first);
        places.take("c").unwrap();
    }

    #[test]
    fn sandboxes_that_use_nothing_are_forgotten() {
        let places = Places::new("things", 1, 1000);
        let _kept = places.take("kept").unwrap();
        for sandbox in 0..1000 {
            places.take(&sandbox.to_string()).unwrap();
        }
        assert!(places.of.lock().unwrap().len() <= KEPT + 2);
        places.take("kept").unwrap_err();
    }
}
