//! Machines that are kept ready for sandboxes.

mod keeper;
mod place;

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::sandbox::lock;
use crate::{Builder, Error, ProcessId};
use keeper::Keeper;
use place::Place;
pub use place::PoolRecord;
pub(crate) use place::claim;

/// Machines that are kept ready for sandboxes of one kind, each restored from the template, in the
/// hands of an owner, and waiting for its sandbox.
///
/// A [`Builder`] with the same image and machine, of any process of the same user with the same
/// program and store, takes a machine from the pool; another one starts in its place. A start that
/// finds the pool empty goes on without it. So does one whose changes go to a disk, or that has
/// patches, sockets ([`Builder::vsock`]), an [owner's log](Builder::owner_log), or
/// [required limits](Builder::require_limits).
///
/// ```no_run
/// # fn main() -> Result<(), micabox::Error> {
/// # let store = micabox::Store::open(&micabox::Store::default_root()?)?;
/// let image = store.image("debian:12")?;
/// let pool = micabox::Builder::new(&store, &image).pool(4)?;
/// pool.wait(4)?;
/// let sandbox = micabox::Sandbox::create(&store, &image)?; // with a machine from the pool
/// # Ok(())
/// # }
/// ```
///
/// The processes of these sandboxes are children of the pool's: they have its control group, limits
/// and environment. Sandboxes that were given a machine don't end with the pool; dropping it ends
/// the machines that were not given away.
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

impl Builder {
    /// Keeps `size` machines ready for sandboxes like this one, from now on. Makes the template
    /// first if there is none, by a boot.
    ///
    /// # Errors
    /// [`Error::NoPool`] if such sandboxes don't start from templates or can't use a pool;
    /// [`Error::PoolExists`]; those of [`Builder::create`] for the template.
    pub fn pool(self, size: usize) -> Result<Pool, Error> {
        let record = PoolRecord {
            base: self.base().name(),
            size,
            process: ProcessId::own(),
        };
        let (store, stock) = self.start.stock()?;
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
        Ok(Pool {
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Pool {
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
            state = woken.unwrap_or_else(PoisonError::into_inner);
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
