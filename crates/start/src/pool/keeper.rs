//! The pool's thread: starts machines, and gives them to the creators that connect.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use micabox_ground::lock;
use micabox_holders::{OwnProcess, receive};
use micabox_socket::send_descriptors;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use tracing::{debug, warn};

use super::Shared;
use super::place::Place;
use crate::owner::{Owner, Ready};
use crate::start::Stock;

/// Time between a vacancy and the start of a machine for it, in which the sandbox that got the
/// machine has the processors for itself.
const AFTER_CLAIM: Duration = Duration::from_millis(20);

/// Time between a failed start and the next attempt.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Time until creators are accepted again after a failure of accept(2).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time between two looks at the owners that have a sandbox, whose exit codes have to be taken.
const REAP: Duration = Duration::from_secs(5);

/// The thread of a pool.
pub(super) struct Keeper {
    place: Place,
    stock: Stock,
    size: usize,
    stop: UnixStream,
    shared: Arc<Shared>,
    starting: Vec<Owner>,
    ready: VecDeque<Owner>,
    /// Owners that have a sandbox, or whose machine has ended.
    given: Vec<OwnProcess>,
    /// When the vacancies are filled.
    fill_at: Option<Instant>,
}

impl Keeper {
    pub(super) fn new(
        place: Place,
        stock: Stock,
        size: usize,
        stop: UnixStream,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            place,
            stock,
            size,
            stop,
            shared,
            starting: Vec::new(),
            ready: VecDeque::new(),
            given: Vec::new(),
            fill_at: Some(Instant::now()),
        }
    }

    /// Keeps machines ready until the pool is dropped, then ends them and waits until they are
    /// gone.
    pub(super) fn run(mut self) {
        while let Ok(true) = self.turn() {}
        let Self {
            place,
            starting,
            ready,
            ..
        } = self;
        drop(place);
        // Owners end with their connection.
        let owners = starting.into_iter().chain(ready);
        let owners: Vec<Option<OwnProcess>> = owners.map(|owner| owner.process).collect();
        for mut owner in owners.into_iter().flatten() {
            owner.wait();
        }
    }

    /// Waits for events, and handles them. False when the pool is dropped.
    fn turn(&mut self) -> io::Result<bool> {
        if self.fill_at.is_some_and(|at| at <= Instant::now()) {
            self.fill_at = None;
            self.fill();
        }
        let (stop, accept, starting, ready) = self.wait()?;
        if stop {
            return Ok(false);
        }
        for place in starting.into_iter().rev() {
            let owner = self.starting.swap_remove(place);
            self.started(owner);
        }
        for place in ready.into_iter().rev() {
            if let Some(owner) = self.ready.remove(place) {
                self.lost(owner, "its machine has ended");
            }
        }
        if accept {
            self.accept();
        }
        self.given.retain_mut(|owner| !owner.is_reaped());
        let mut state = lock(&self.shared.state);
        state.ready = self.ready.len();
        self.shared.changed.notify_all();
        Ok(true)
    }

    /// Waits for an event: the end of the pool, a creator, and the places of the owners in
    /// `starting` and `ready` that have something to say.
    fn wait(&self) -> io::Result<(bool, bool, Vec<usize>, Vec<usize>)> {
        let starting = self.starting.iter().map(|owner| owner.connection.as_fd());
        let ready = self.ready.iter().map(|owner| owner.connection.as_fd());
        let fixed = [self.stop.as_fd(), self.place.listener.as_fd()];
        let fds = fixed.into_iter().chain(starting).chain(ready);
        let mut fds: Vec<_> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let fill = self
            .fill_at
            .map(|at| at.saturating_duration_since(Instant::now()));
        let reap = (!self.given.is_empty()).then_some(REAP);
        let timeout = fill.into_iter().chain(reap).min();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut is_ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let stop = is_ready.next().unwrap_or_default();
        let accept = is_ready.next().unwrap_or_default();
        let mut places = |count: usize| {
            let places = is_ready.by_ref().take(count).enumerate();
            places
                .filter_map(|(place, is_ready)| is_ready.then_some(place))
                .collect()
        };
        Ok((
            stop,
            accept,
            places(self.starting.len()),
            places(self.ready.len()),
        ))
    }

    /// Starts owners for the vacancies.
    fn fill(&mut self) {
        while self.starting.len() + self.ready.len() < self.size {
            match self.stock.start() {
                Ok(owner) => self.starting.push(owner),
                Err(error) => {
                    self.failed(error.to_string());
                    return;
                }
            }
        }
    }

    /// An owner says whether its machine runs.
    fn started(&mut self, owner: Owner) {
        match receive::<Ready>(&owner.connection) {
            Ok((Ok(()), _)) => {
                lock(&self.shared.state).failure = None;
                self.ready.push_back(owner);
            }
            Ok((Err(why), _)) => {
                self.given.extend(owner.process);
                self.failed(why);
            }
            Err(_) => {
                self.given.extend(owner.process);
                self.failed("the owner of its machine was ended".to_owned());
            }
        }
    }

    fn failed(&mut self, why: String) {
        warn!(why, "a machine for the pool does not start");
        lock(&self.shared.state).failure = Some(why);
        self.fill_at = Some(Instant::now() + AFTER_FAILURE);
    }

    fn lost(&mut self, owner: Owner, why: &str) {
        debug!(why, "a machine leaves the pool");
        self.given.extend(owner.process);
        self.vacant();
    }

    fn vacant(&mut self) {
        self.fill_at
            .get_or_insert_with(|| Instant::now() + AFTER_CLAIM);
    }

    /// Gives machines to the creators that have connected. A creator that gets none sees its
    /// connection end.
    fn accept(&mut self) {
        loop {
            let creator = match self.place.listener.accept() {
                Ok((creator, _)) => creator,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // As a rule, no descriptors are left, and the connection waits.
                    std::thread::sleep(ACCEPT_PAUSE);
                    return;
                }
            };
            let user = socket_peercred(&creator).map(|peer| peer.uid);
            if user != Ok(rustix::process::geteuid()) {
                continue;
            }
            while let Some(owner) = self.ready.pop_front() {
                let given = send_descriptors(&owner.connection, &[creator.as_fd()]);
                self.given.extend(owner.process);
                self.vacant();
                if given.is_ok() {
                    debug!("gave a machine to a sandbox");
                    break;
                }
            }
        }
    }
}
