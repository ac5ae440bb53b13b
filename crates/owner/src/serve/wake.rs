//! Sends events from threads to the event loop, which an eventfd wakes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

/// The event loop's end of the queue.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    events: Receiver<T>,
    wake: Arc<OwnedFd>,
}

/// A thread's end of the queue.
#[derive(Debug)]
pub(super) struct Notifier<T> {
    events: Sender<T>,
    wake: Arc<OwnedFd>,
}

impl<T> Clone for Notifier<T> {
    fn clone(&self) -> Self {
        Self {
            events: self.events.clone(),
            wake: Arc::clone(&self.wake),
        }
    }
}

/// Makes both ends of a queue.
pub(super) fn inbox<T>() -> rustix::io::Result<(Notifier<T>, Inbox<T>)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (events, inbox) = channel();
    let notifier = Notifier {
        events,
        wake: Arc::clone(&wake),
    };
    Ok((
        notifier,
        Inbox {
            events: inbox,
            wake,
        },
    ))
}

impl<T> Notifier<T> {
    /// Sends an event to the event loop, if that still runs.
    pub(super) fn notify(&self, event: T) {
        if self.events.send(event).is_ok() {
            let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        }
    }
}

impl<T> Inbox<T> {
    /// Takes the events since the last call.
    pub(super) fn take(&self) -> Vec<T> {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        self.events.try_iter().collect()
    }
}

impl<T> AsFd for Inbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
