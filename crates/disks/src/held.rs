//! A machine that stays frozen while something of it is read, however long that takes.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use micabox_ground::lock;
use micabox_owner::protocol::HOLD_TIMEOUT;

use crate::freeze::Frozen;

/// Interval between messages to the owner.
const BEAT: Duration = Duration::from_millis(500);

/// How old the last message may be: the owner waits for the next one a little longer.
const LIMIT: Duration = HOLD_TIMEOUT.saturating_sub(Duration::from_secs(2));

/// A frozen machine, which a thread holds until this is dropped.
#[derive(Debug)]
pub struct Held {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// When the owner was last notified in time; none after a message that was late.
    notified: Arc<Mutex<Option<Instant>>>,
}

impl Held {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn new(mut frozen: Frozen) -> io::Result<Self> {
        let notified = Arc::new(Mutex::new(Some(Instant::now())));
        let (end, ended) = channel();
        let shared = Arc::clone(&notified);
        let thread = std::thread::Builder::new().name("freeze".into());
        let thread = thread.spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(BEAT) {
                frozen.hold();
                let mut notified = lock(&shared);
                *notified = notified.filter(is_recent).map(|_| Instant::now());
            }
            frozen.thaw();
        })?;
        Ok(Self {
            end: Some(end),
            thread: Some(thread),
            notified,
        })
    }

    /// Checks that the machine has not been thawed so far, because this process was stopped.
    ///
    /// # Errors
    /// If it may have been.
    pub fn check(&self) -> io::Result<()> {
        let notified = *lock(&self.notified);
        match notified.filter(is_recent) {
            Some(_) => Ok(()),
            None => Err(io::Error::other(
                "the sandbox was resumed before its changes were read",
            )),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn is_recent(notified: &Instant) -> bool {
    notified.elapsed() < LIMIT
}
