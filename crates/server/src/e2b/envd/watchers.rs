//! The watches of clients that ask for changes from time to time.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use micabox_ground::lock;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::events::Event;
use crate::e2b::places::{Permit, Places};
use crate::e2b::problem::{Kind, Problem};
use crate::e2b::token;

/// How long a watch is kept for a client that does not ask, if its place is needed: one that ended without
/// removing the watch never asks again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Most changes that are kept for a client that does not ask, and most bytes of them.
const CHANGES: usize = 10_000;
const BYTES: usize = 2 << 20;

/// All watches of clients that ask.
#[derive(Debug, Default)]
pub struct Watchers(Mutex<HashMap<String, Kept>>);

/// The watch of a client that asks from time to time.
#[derive(Debug)]
struct Kept {
    /// The sandbox's ID.
    sandbox: String,
    watcher: Arc<Watcher>,
    asked: Instant,
}

/// What has changed since a client asked.
#[derive(Debug)]
pub struct Watcher {
    changes: Mutex<Changes>,
    /// Where the watch is asked for all that has changed so far.
    asks: mpsc::Sender<oneshot::Sender<()>>,
}

#[derive(Debug, Default)]
struct Changes {
    /// In JSON.
    all: VecDeque<Vec<u8>>,
    bytes: usize,
    are_missing: bool,
    end: Option<Problem>,
}

impl Watchers {
    /// Takes a place for a watch: one of a client that does not ask, if there is no other.
    pub async fn room(&self, places: &Places, sandbox: &str) -> Result<Permit, Problem> {
        let full = match places.take(sandbox) {
            Ok(place) => return Ok(place),
            Err(full) => full,
        };
        let of = places.is_full_for(sandbox).then_some(sandbox);
        if !self.give_one_up(of) {
            return Err(full);
        }
        // It is free as soon as that watch has ended.
        places.wait(sandbox, 1).await
    }

    /// Keeps a watch. Returns its name, and where its changes go for as long as it is kept.
    pub fn keep(
        &self,
        sandbox: &str,
        asks: mpsc::Sender<oneshot::Sender<()>>,
    ) -> Result<(String, Weak<Watcher>), Problem> {
        let name = token::random();
        let name = name.map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
        let watcher = Arc::new(Watcher {
            changes: Mutex::default(),
            asks,
        });
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

    /// Evicts the least recently polled watch, of this sandbox or of all, if it has been idle for [`PATIENCE`]. Returns
    /// whether it did.
    fn give_one_up(&self, sandbox: Option<&str>) -> bool {
        let mut all = self.lock();
        let ours = all.iter();
        let ours = ours.filter(|(_, kept)| sandbox.is_none_or(|sandbox| kept.sandbox == sandbox));
        let oldest = ours.min_by_key(|(_, kept)| kept.asked);
        let oldest = oldest.filter(|(_, kept)| kept.asked.elapsed() >= PATIENCE);
        let name = oldest.map(|(name, _)| name.clone());
        name.is_some_and(|name| all.remove(&name).is_some())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Kept>> {
        lock(&self.0)
    }
}

impl Watcher {
    /// Notes a change.
    pub fn push(&self, event: &Event) {
        // Writing into memory does not fail.
        let event = serde_json::to_vec(event).unwrap_or_default();
        let mut changes = self.lock();
        changes.bytes += event.len();
        changes.all.push_back(event);
        while changes.all.len() > CHANGES || changes.bytes > BYTES {
            let Some(oldest) = changes.all.pop_front() else {
                break;
            };
            changes.bytes -= oldest.len();
            changes.are_missing = true;
        }
    }

    /// Notes why there are no more.
    pub fn end(&self, why: Problem) {
        self.lock().end = Some(why);
    }

    /// Notes that some are missing.
    pub fn miss(&self) {
        self.lock().are_missing = true;
    }

    /// Waits until all that has changed by now is noted.
    pub async fn ask(&self, time: Duration) -> Result<(), Problem> {
        let (answer, answered) = oneshot::channel();
        let asking = async {
            if self.asks.send(answer).await.is_ok() {
                // Without an answer it has ended, and all is noted.
                let _ = answered.await;
            }
        };
        let late = |_| {
            let message = "the sandbox does not say what has changed";
            Problem::new(Kind::Deadline, message)
        };
        timeout(time, asking).await.map_err(late)
    }

    /// Returns what has changed, as the reply for the client.
    pub fn take(&self) -> Result<Vec<u8>, Problem> {
        let mut changes = self.lock();
        if std::mem::take(&mut changes.are_missing) {
            changes.all.clear();
            changes.bytes = 0;
            let message = "there were too many changes, and some are missing";
            return Err(Problem::new(Kind::TooMany, message));
        }
        match &changes.end {
            Some(why) if changes.all.is_empty() => Err(why.clone()),
            _ => {
                changes.bytes = 0;
                let all: Vec<Vec<u8>> = changes.all.drain(..).collect();
                Ok([&b"{\"events\":["[..], &all.join(&b','), b"]}"].concat())
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Changes> {
        lock(&self.changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(watchers: &Watchers, sandbox: &str) -> String {
        let (asks, _) = mpsc::channel(1);
        watchers.keep(sandbox, asks).unwrap().0
    }

    #[test]
    fn a_watch_whose_client_does_not_ask_makes_room_for_another() {
        let watchers = Watchers::default();
        let (left, used) = (keep(&watchers, "one"), keep(&watchers, "two"));
        assert!(!watchers.give_one_up(None));
        for kept in watchers.lock().values_mut() {
            kept.asked = kept.asked.checked_sub(PATIENCE).unwrap();
        }
        watchers.find("two", &used).unwrap();
        // One sandbox takes no place of another's.
        assert!(!watchers.give_one_up(Some("two")));
        assert!(watchers.give_one_up(None));
        let gone = watchers.find("one", &left).unwrap_err();
        assert_eq!(gone.kind, Kind::NotFound);
        watchers.find("two", &used).unwrap();
        assert!(!watchers.give_one_up(None));
    }

    #[test]
    fn changes_that_wait_for_a_client_are_bounded() {
        let event = |name: String| {
            Event::of(&micabox::FileEvent {
                change: micabox::FileChange::Created,
                path: name.into(),
                is_directory: false,
                cookie: 0,
            })
            .unwrap()
        };
        let (asks, _) = mpsc::channel(1);
        let watcher = Watcher {
            changes: Mutex::default(),
            asks,
        };
        watcher.push(&event("a".to_owned()));
        let told = br#"{"events":[{"name":"a","type":"EVENT_TYPE_CREATE"}]}"#;
        assert_eq!(watcher.take().unwrap(), told);
        assert_eq!(watcher.take().unwrap(), b"{\"events\":[]}");
        for length in [1, 4000] {
            for _ in 0..=CHANGES {
                watcher.push(&event("x".repeat(length)));
            }
            let changes = watcher.lock();
            assert!(changes.all.len() <= CHANGES && changes.bytes <= BYTES);
            drop(changes);
            assert_eq!(watcher.take().unwrap_err().kind, Kind::TooMany);
            assert_eq!(watcher.take().unwrap(), b"{\"events\":[]}");
        }
    }
}
