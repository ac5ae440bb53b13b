//! The connection that the operations of a sandbox's files share. It is made when it is needed, and kept unless this
//! process keeps too many.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};

use micabox_error::Error;
use micabox_ground::lock;
use micabox_owner::protocol::Exec;

use super::link::{Link, Over, Use};

/// Most connections that a process keeps while nothing uses them. Each is a descriptor, of which many programs may have
/// 1,024.
const MOST_IDLE: usize = 64;

/// Those of this process.
static ALL: All = All::new();

/// A sandbox's connection.
#[derive(Debug)]
pub(crate) struct Shared {
    kept: Mutex<Kept>,
    /// When an operation was over last, by the clock of all.
    used: AtomicU64,
    all: &'static All,
}

#[derive(Debug, Default)]
enum Kept {
    #[default]
    None,
    /// A connection, and how many operations use it.
    Link(Arc<Link>, usize),
    /// The owner, of an earlier version, takes each connection for use of the sandbox.
    Refused,
}

/// All sandboxes with a connection.
#[derive(Debug)]
struct All {
    /// It counts operations.
    clock: AtomicU64,
    connected: Mutex<Vec<Weak<Shared>>>,
}

/// An operation's use of a connection.
struct Used<'a> {
    shared: &'a Shared,
    link: Arc<Link>,
}

impl Default for Shared {
    fn default() -> Self {
        Self::among(&ALL)
    }
}

impl Shared {
    fn among(all: &'static All) -> Self {
        Self {
            kept: Mutex::default(),
            used: AtomicU64::new(0),
            all,
        }
    }

    /// Performs an operation on the connection to the owner of the sandbox whose state is in `directory`; None if it has
    /// none that is kept.
    ///
    /// # Errors
    /// Those of [`Link::connect`] and [`Link::perform`].
    pub(super) fn perform(
        self: &Arc<Self>,
        directory: &Path,
        name: &str,
        exec: Exec,
    ) -> Result<Option<Over>, Error> {
        let Some(used) = self.link(directory, name)? else {
            return Ok(None);
        };
        used.link.perform(exec).map(Some)
    }

    fn link(self: &Arc<Self>, directory: &Path, name: &str) -> Result<Option<Used<'_>>, Error> {
        let mut kept = lock(&self.kept);
        let use_of = match &*kept {
            Kept::Refused => Use::Refused,
            Kept::Link(link, _) => link.look(),
            Kept::None => Use::NoOther,
        };
        let link = match (&mut *kept, use_of) {
            (_, Use::Refused) => {
                *kept = Kept::Refused;
                return Ok(None);
            }
            (Kept::Link(link, users), Use::Next) => {
                *users = users.saturating_add(1);
                Arc::clone(link)
            }
            _ => {
                let link = Arc::new(Link::connect(directory, name)?);
                *kept = Kept::Link(Arc::clone(&link), 1);
                self.all.add(self);
                link
            }
        };
        Ok(Some(Used { shared: self, link }))
    }

    /// Returns what is kept, unless it is in use at this moment.
    fn try_kept(&self) -> Option<MutexGuard<'_, Kept>> {
        match self.kept.try_lock() {
            Ok(kept) => Some(kept),
            Err(TryLockError::Poisoned(kept)) => Some(kept.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns whether there may be a connection.
    fn is_connected(&self) -> bool {
        self.try_kept()
            .is_none_or(|kept| matches!(*kept, Kept::Link(..)))
    }

    /// Returns whether there is a connection that nothing uses.
    fn is_idle(&self) -> bool {
        self.try_kept()
            .is_some_and(|kept| matches!(*kept, Kept::Link(_, 0)))
    }

    /// Lets go of a connection that nothing uses.
    fn close_idle(&self) {
        if let Some(mut kept) = self.try_kept()
            && let Kept::Link(_, 0) = *kept
        {
            *kept = Kept::None;
        }
    }
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        let mut kept = lock(&self.shared.kept);
        if let Kept::Link(link, users) = &mut *kept
            && Arc::ptr_eq(link, &self.link)
        {
            *users = users.saturating_sub(1);
            match link.good_for() {
                Use::Next => {}
                Use::NoOther => *kept = Kept::None,
                Use::Refused => *kept = Kept::Refused,
            }
        }
        let now = self.shared.all.clock.fetch_add(1, Ordering::Relaxed);
        self.shared.used.store(now, Ordering::Relaxed);
        drop(kept);
        self.shared.all.close_idle();
    }
}

impl All {
    const fn new() -> Self {
        Self {
            clock: AtomicU64::new(0),
            connected: Mutex::new(Vec::new()),
        }
    }

    /// Notes that a sandbox has a connection.
    fn add(&self, shared: &Arc<Shared>) {
        let mut connected = lock(&self.connected);
        let shared = Arc::downgrade(shared);
        if !connected.iter().any(|other| other.ptr_eq(&shared)) {
            connected.push(shared);
        }
    }

    /// Closes those connections that were used least recently, if too many are idle.
    fn close_idle(&self) {
        let mut connected = lock(&self.connected);
        if connected.len() <= MOST_IDLE {
            return;
        }
        // None is waited for here: one that is locked is in use.
        let mut idle: Vec<_> = connected
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|shared| shared.is_idle())
            .map(|shared| (shared.used.load(Ordering::Relaxed), shared))
            .collect();
        idle.sort_unstable_by_key(|(used, _)| *used);
        let excess = idle.len().saturating_sub(MOST_IDLE);
        for (_, shared) in idle.drain(..excess) {
            shared.close_idle();
        }
        connected.retain(|shared| shared.upgrade().is_some_and(|shared| shared.is_connected()));
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use micabox_owner::protocol::{Failure, Kind, Reply, Request};

    use super::super::fake_owner::{Event, FakeOwner, named};
    use super::*;

    /// Sandboxes of a process of their own.
    fn sandboxes(count: usize) -> (&'static All, Vec<Arc<Shared>>) {
        let all = Box::leak(Box::new(All::new()));
        let sandboxes = (0..count).map(|_| Arc::new(Shared::among(all)));
        (all, sandboxes.collect())
    }

    fn performer() -> FakeOwner {
        FakeOwner::start(|connection, number, _| {
            connection.perform(number);
            true
        })
    }

    fn work(shared: &Arc<Shared>, owner: &FakeOwner, user: &str) {
        let over = shared.perform(owner.directory(), "box", named(user));
        assert_eq!(over.unwrap().unwrap().stdout.len(), 4);
    }

    fn is_connected(shared: &Shared) -> bool {
        matches!(*lock(&shared.kept), Kept::Link(..))
    }

    #[test]
    fn operations_of_all_threads_share_a_connection_and_none_waits_for_another() {
        let mut held = None;
        let owner = FakeOwner::start(move |connection, number, request| {
            match request {
                // The first one waits for the last.
                Request::Exec(exec) if held.is_none() && exec.user != "last" => {
                    held = Some(number);
                }
                Request::Exec(exec) => {
                    connection.perform(number);
                    if exec.user == "last" {
                        connection.perform(held.unwrap_or_default());
                    }
                }
                other => panic!("{other:?}"),
            }
            true
        });
        let shared = Arc::new(Shared::default());
        let work = |user: &str| {
            let over = shared.perform(owner.directory(), "box", named(user));
            assert_eq!(over.unwrap().unwrap().stdout.len(), 4);
        };
        thread::scope(|scope| {
            let first = scope.spawn(|| work("first"));
            let others: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..100).for_each(|_| work(""))))
                .collect();
            // One of them may have been the first, and waits.
            while !first.is_finished() || !others.iter().all(|other| other.is_finished()) {
                work("last");
            }
        });
        let connections = owner
            .events()
            .into_iter()
            .filter(|event| *event == Event::Connected);
        assert_eq!(connections.count(), 1);
    }

    #[test]
    fn a_connection_that_has_ended_is_made_again_and_one_that_may_not_be_kept_is_not() {
        let mut is_new = true;
        let owner = FakeOwner::greeting(move |connection, number, request| {
            match request {
                Request::Uncount if is_new => connection.reply(number, &Reply::Uncounted),
                Request::Uncount => {
                    let failure = Failure::new(Kind::Invalid, "unknown variant");
                    connection.reply(number, &Reply::Failed(failure));
                }
                _ => {
                    connection.perform(number);
                    // And hangs up.
                    return !std::mem::take(&mut is_new);
                }
            }
            true
        });
        let shared = Arc::new(Shared::default());
        work(&shared, &owner, "");
        owner.disconnected();
        work(&shared, &owner, "");
        let refused = shared.perform(owner.directory(), "box", Exec::default());
        assert!(refused.unwrap().is_none());
        let nowhere = tempfile::tempdir().unwrap();
        let missing = Arc::new(Shared::default());
        let missing = missing.perform(nowhere.path(), "box", Exec::default());
        assert!(matches!(missing, Err(Error::DoesNotRun(name)) if name == "box"));
    }

    #[test]
    fn the_idle_connection_that_was_used_least_recently_is_closed_for_another_one() {
        let owner = performer();
        let (all, sandboxes) = sandboxes(MOST_IDLE + 2);
        for shared in &sandboxes[..MOST_IDLE] {
            work(shared, &owner, "");
        }
        work(&sandboxes[0], &owner, "");
        assert!(sandboxes[..MOST_IDLE].iter().all(|one| is_connected(one)));
        let closed = || {
            owner.disconnected();
            let closed = (0..sandboxes.len()).filter(|number| !is_connected(&sandboxes[*number]));
            closed.collect::<Vec<_>>()
        };
        work(&sandboxes[MOST_IDLE], &owner, "");
        assert_eq!(closed(), [1, MOST_IDLE + 1]);
        work(&sandboxes[MOST_IDLE + 1], &owner, "");
        assert_eq!(closed(), [1, 2]);
        // It is made again when it is needed.
        work(&sandboxes[1], &owner, "");
        assert_eq!(closed(), [2, 3]);
        assert_eq!(lock(&all.connected).len(), MOST_IDLE);
        // What has no sandbox any more is not counted.
        drop(sandboxes);
        let last = Arc::new(Shared::among(all));
        work(&last, &owner, "");
        assert_eq!(lock(&all.connected).len(), 1);
    }

    #[test]
    fn a_connection_with_an_operation_under_way_is_not_closed() {
        let mut held = None;
        let owner = FakeOwner::start(move |connection, number, request| {
            match request {
                Request::Exec(exec) if exec.user == "held" => {
                    held = Some((connection.again(), number));
                    return true;
                }
                Request::Exec(exec) if exec.user == "last" => {
                    let (mut connection, number) = held.take().unwrap();
                    connection.perform(number);
                }
                _ => {}
            }
            connection.perform(number);
            true
        });
        let (_, sandboxes) = sandboxes(MOST_IDLE + 3);
        let (last, others) = sandboxes[1..].split_last().unwrap();
        thread::scope(|scope| {
            let held = scope.spawn(|| work(&sandboxes[0], &owner, "held"));
            owner.performs();
            others.iter().for_each(|shared| work(shared, &owner, ""));
            let connected = [&sandboxes[0], &others[0]].map(|shared| is_connected(shared));
            work(last, &owner, "last");
            held.join().unwrap();
            assert_eq!(connected, [true, false]);
        });
        // It was the last one whose operation was over.
        work(&sandboxes[0], &owner, "");
        let connections = owner
            .events()
            .into_iter()
            .filter(|event| *event == Event::Connected);
        assert_eq!(connections.count(), others.len() + 1);
    }

    #[test]
    fn operations_do_not_notice_that_connections_are_closed() {
        let owner = performer();
        let (all, sandboxes) = sandboxes(3 * MOST_IDLE);
        thread::scope(|scope| {
            for thread in 0..4 {
                let (sandboxes, owner) = (&sandboxes, &owner);
                scope.spawn(move || {
                    for round in 0..4 {
                        let order = (0..sandboxes.len()).map(|place| place * (thread + round + 1));
                        for place in order {
                            let shared = &sandboxes[place % sandboxes.len()];
                            let over = shared.perform(owner.directory(), "box", named(""));
                            assert_eq!(over.unwrap().unwrap().stdout.len(), 4);
                        }
                    }
                });
            }
        });
        let open = sandboxes.iter().filter(|shared| is_connected(shared));
        assert_eq!(open.count(), MOST_IDLE);
        assert_eq!(lock(&all.connected).len(), MOST_IDLE);
    }
}
