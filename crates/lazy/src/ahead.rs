//! Chunks that an earlier start has read, fetched in its order before they are asked for.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

use micabox_ground::lock;

use crate::blob::LARGEST;
use crate::order::Order;

/// Parts that are fetched at the same time: each is an answer to wait for, and what is read first shares the line with
/// the others.
const AT_ONCE: usize = 6;

/// Chunks of a part.
const PART: usize = 4;

/// Bytes of disk that may be taken between two answers of `fetch`.
pub const AHEAD_ROOM: u64 = (AT_ONCE * PART) as u64 * LARGEST;

/// Threads that fetch what an earlier start has read.
pub struct Ahead {
    threads: Vec<JoinHandle<()>>,
}

impl Ahead {
    /// Begins to fetch the chunks of an order. `fetch` gets the number of a layer and some of its chunks, which need not
    /// exist, and returns whether the thread is to continue: an order of a registry may name all that there is. A part that
    /// can't be fetched ends it: a read of the chunk fails with the reason.
    pub fn begin(
        order: &Order,
        fetch: impl Fn(usize, Range<usize>) -> bool + Send + Sync + 'static,
    ) -> Self {
        let parts = order.runs().flat_map(|(layer, run)| {
            let starts = run.clone().step_by(PART);
            starts.map(move |start| (layer, start..run.end.min(start + PART)))
        });
        let parts: Vec<_> = parts.collect();
        let shared = Arc::new((Mutex::new(parts.into_iter()), fetch));
        let threads = (0..AT_ONCE).map_while(|_| {
            let shared = Arc::clone(&shared);
            let next = move || {
                let (parts, fetch) = &*shared;
                let part = lock(parts).next();
                part.is_some_and(|(layer, chunks)| fetch(layer, chunks))
            };
            // Without a thread, chunks come when they are read.
            let thread = Builder::new().name("prefetch".into());
            thread.spawn(move || while next() {}).ok()
        });
        Self {
            threads: threads.collect(),
        }
    }

    /// Waits until nothing is being fetched any more.
    pub fn wait(self) {
        for thread in self.threads {
            // It has printed why it ended.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead")
            .field("threads", &self.threads.len())
            .finish()
    }
}
