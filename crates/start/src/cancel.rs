//! Cancels a sandbox's start.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use micabox_ground::lock;

/// Cancels a start, from another thread.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    state: Arc<Mutex<CancelState>>,
}

#[derive(Debug, Default)]
struct CancelState {
    cancelled: bool,
    /// Connections to owners. An owner ends its sandbox when its creator's connection ends.
    owners: Vec<UnixStream>,
    #[cfg(feature = "registry")]
    pulls: micabox_transfer::Cancellation,
}

impl Cancel {
    /// Cancels the start: [`Start::create`](crate::Start::create) fails with
    /// [`Error::Cancelled`](micabox_error::Error::Cancelled) if it has not succeeded yet. Later, ends the
    /// sandbox.
    pub fn cancel(&self) {
        let mut state = lock(&self.state);
        state.cancelled = true;
        for owner in &state.owners {
            let _ = owner.shutdown(Shutdown::Write);
        }
        #[cfg(feature = "registry")]
        state.pulls.cancel();
    }

    /// Returns what cancels pulls of the sandbox's images with its start: for [`PullOptions`](micabox_transfer::PullOptions).
    #[cfg(feature = "registry")]
    pub fn pulls(&self) -> micabox_transfer::Cancellation {
        lock(&self.state).pulls.clone()
    }

    /// Returns whether the start was cancelled.
    pub fn is_cancelled(&self) -> bool {
        lock(&self.state).cancelled
    }

    /// Ends the connection to this owner when the start is cancelled.
    pub fn watch(&self, owner: &UnixStream) {
        let mut state = lock(&self.state);
        if state.cancelled {
            let _ = owner.shutdown(Shutdown::Write);
        }
        state.owners.extend(owner.try_clone());
    }
}
