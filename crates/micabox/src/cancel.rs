//! A start that is given up.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use crate::sandbox::lock;

/// Gives a start up, from another thread.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    state: Arc<Mutex<CancelState>>,
}

#[derive(Debug, Default)]
struct CancelState {
    cancelled: bool,
    /// To owners, which give their sandboxes up when they end.
    owners: Vec<UnixStream>,
}

impl Cancel {
    /// Gives the start up: [`Builder::create`](crate::Builder::create) fails with
    /// [`Error::Cancelled`](crate::Error::Cancelled) if it has not succeeded yet. Later, it ends
    /// the sandbox.
    pub fn cancel(&self) {
        let mut state = lock(&self.state);
        state.cancelled = true;
        for owner in &state.owners {
            let _ = owner.shutdown(Shutdown::Write);
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        lock(&self.state).cancelled
    }

    pub(crate) fn watch(&self, owner: &UnixStream) {
        let mut state = lock(&self.state);
        if state.cancelled {
            let _ = owner.shutdown(Shutdown::Write);
        }
        state.owners.extend(owner.try_clone());
    }
}
