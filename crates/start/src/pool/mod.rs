//! Machines that are kept ready for sandboxes.

mod keeper;
mod place;

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use micabox_error::Error;
use micabox_ground::lock;
use micabox_ground::lock::ignore_poison;
use micabox_state::ProcessId;

use crate::Start;
use keeper::Keeper;
use place::Place;
pub use place::PoolRecord;
pub use place::claim;

/// Machines that are kept ready for sandboxes of one kind, each restored from the template, in the
/// hands of an owner, and waiting for its sandbox. Dropping it ends the machines that were not given away.
///
/// A start with the same image and machine, of any process of the same user with the same
/// program and store, takes a machine from the pool; another one starts in its place. A start that
/// finds the pool empty goes on without it. So does one whose changes go to a disk, or that has
/// patches, sockets, an owner's log, or required limits.
///
/// The processes of these sandboxes are children of the pool's: they have its control group, limits
/// and environment. Sandboxes that were given a machine don't end with the pool.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    /// Closed to end the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// What the pool's thread and its users share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of machines that are ready.
    ready: usize,
    /// Why the last machine did not start; none once one has.
    failure: Option<String>,
}

impl Pool {
    /// Keeps `size` machines ready for sandboxes like that of `start`, from now on. Makes the template first if there
    /// is none, by a boot.
    ///
    /// # Errors
    /// [`Error::NoPool`] if such sandboxes don't start from templates or can't use a pool;
    /// [`Error::PoolExists`]; those of [`Start::create`] for the template.
    pub fn of(start: Start, size: usize) -> Result<Self, Error> {
        let record = PoolRecord {
            base: start.base.name(),
            size,
            process: ProcessId::own(),
        };
        let (store, stock) = start.stock()?;
        let place = Place::bind(store.root(), stock.template(), &record)?;
        let thread = |what| move |source: io::Error| Error::System { what, source };
        let failed = thread("starting the pool");
        let (stop, stopped) = UnixStream::pair().map_err(&failed)?;
        let shared = Arc::new(Shared::default());
        let keeper = Keeper::new(place, stock, size, stopped, Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("pool".into())
            .spawn(move || keeper.run())
            .map_err(failed)?;
        Ok(Self {
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the number of machines that are ready.
    pub fn ready(&self) -> usize {
        lock(&self.shared.state).ready
    }

    /// Returns why the last machine did not start; none if it did. The pool tries again.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.state).failure.clone()
    }

    /// Waits until `count` machines are ready.
    ///
    /// # Errors
    /// [`Error::NotStarted`] if one can't be started.
    pub fn wait(&self, count: usize) -> Result<(), Error> {
        let mut state = lock(&self.shared.state);
        while state.ready < count {
            if let Some(failure) = &state.failure {
                return Err(Error::NotStarted(failure.clone()));
            }
            let woken = self.shared.changed.wait(state);
            state = ignore_poison(woken);
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
