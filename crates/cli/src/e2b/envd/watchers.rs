//! The watches of clients that ask for changes from time to time.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::e2b::problem::{Kind, Problem};
use crate::e2b::token;

/// Most watches of a server, streams included: each has a thread.
const WATCHES: usize = 128;

/// How long a watch is kept for a client that does not ask, if its place is needed: one that ended without
/// removing the watch never asks again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Most changes that are kept for a client that does not ask.
const CHANGES: usize = 10_000;

/// All watches.
#[derive(Debug, Default)]
pub struct Watchers {
    kept: Mutex<HashMap<String, Kept>>,
    running: Arc<()>,
}

/// The watch of a client that asks from time to time.
#[derive(Debug)]
struct Kept {
    /// The sandbox's ID.
    sandbox: String,
    watcher: Arc<Watcher>,
    asked: Instant,
}

/// What has changed since a client asked.
#[derive(Debug, Default)]
pub struct Watcher(Mutex<Changes>);

#[derive(Debug, Default)]
struct Changes {
    all: VecDeque<Value>,
    are_missing: bool,
    end: Option<Problem>,
}

/// A watch's place; it is free again when this is dropped.
#[derive(Debug)]
pub struct Ticket {
    _running: Arc<()>,
}

impl Watchers {
    /// Takes a place for a watch.
    pub fn ticket(&self) -> Result<Ticket, Problem> {
        // The thread of a watch that is given up ends, and its place is free, within a second.
        if Arc::strong_count(&self.running) > WATCHES && !self.give_one_up() {
            let message = format!("this server has {WATCHES} watches already");
            return Err(Problem::new(Kind::TooMany, message));
        }
        Ok(Ticket {
            _running: Arc::clone(&self.running),
        })
    }

    /// Keeps a watch. Returns its name, and where its changes go for as long as it is kept.
    pub fn keep(&self, sandbox: &str) -> Result<(String, Weak<Watcher>), Problem> {
        let name = token::random();
        let name = name.map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
        let watcher = Arc::new(Watcher::default());
        let changes = Arc::downgrade(&watcher);
        let kept = Kept {
            sandbox: sandbox.to_owned(),
            watcher,
            asked: Instant::now(),
        };
        self.lock().insert(name.clone(), kept);
        Ok((name, changes))
    }

    /// Finds a sandbox's watch.
    pub fn find(&self, sandbox: &str, name: &str) -> Result<Arc<Watcher>, Problem> {
        let mut all = self.lock();
        let found = all.get_mut(name).filter(|kept| kept.sandbox == sandbox);
        let found = found.map(|kept| {
            kept.asked = Instant::now();
            Arc::clone(&kept.watcher)
        });
        found.ok_or_else(|| Problem::not_found(format!("no watcher with the id {name:?}")))
    }

    /// Ends a sandbox's watch.
    pub fn remove(&self, sandbox: &str, name: &str) -> Result<(), Problem> {
        self.find(sandbox, name)?;
        self.lock().remove(name);
        Ok(())
    }

    /// Removes the watch whose client has not asked for longest; false if each one has within [`PATIENCE`].
    fn give_one_up(&self) -> bool {
        let mut all = self.lock();
        let oldest = all.iter().min_by_key(|(_, kept)| kept.asked);
        let oldest = oldest.filter(|(_, kept)| kept.asked.elapsed() >= PATIENCE);
        let name = oldest.map(|(name, _)| name.clone());
        name.is_some_and(|name| all.remove(&name).is_some())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// Notes a change.
    pub fn push(&self, event: Value) {
        let mut changes = self.lock();
        if changes.all.len() == CHANGES {
            changes.all.pop_front();
            changes.are_missing = true;
        }
        changes.all.push_back(event);
    }

    /// Notes why there are no more.
    pub fn end(&self, why: Problem) {
        self.lock().end = Some(why);
    }

    /// Notes that some are missing.
    pub fn miss(&self) {
        self.lock().are_missing = true;
    }

    /// Returns what has changed.
    pub fn take(&self) -> Result<Vec<Value>, Problem> {
        let mut changes = self.lock();
        if std::mem::take(&mut changes.are_missing) {
            changes.all.clear();
            let message = "there were too many changes, and some are missing";
            return Err(Problem::new(Kind::TooMany, message));
        }
        match &changes.end {
            Some(why) if changes.all.is_empty() => Err(why.clone()),
            _ => Ok(changes.all.drain(..).collect()),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Changes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_whose_client_does_not_ask_makes_room_for_another() {
        let watchers = Watchers::default();
        let mut tickets: Vec<_> = (0..WATCHES).map(|_| watchers.ticket().unwrap()).collect();
        let (left, _changes) = watchers.keep("one").unwrap();
        let (used, _changes) = watchers.keep("two").unwrap();
        assert_eq!(watchers.ticket().unwrap_err().kind, Kind::TooMany);
        for kept in watchers.lock().values_mut() {
            kept.asked = kept.asked.checked_sub(PATIENCE).unwrap();
        }
        watchers.find("two", &used).unwrap();
        tickets.push(watchers.ticket().unwrap());
        assert_eq!(
            watchers.find("one", &left).unwrap_err().kind,
            Kind::NotFound
        );
        watchers.find("two", &used).unwrap();
        assert_eq!(watchers.ticket().unwrap_err().kind, Kind::TooMany);
    }
}
