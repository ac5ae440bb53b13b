//! Which threads wait for requests: one, as long as requests are short.
//!
//! The kernel wakes the thread that has waited longest. If several wait, each request wakes another one, on
//! another processor; a single one stays on that of the program that asks, or comes to it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A request that takes as long has others wait for too long: one more thread serves them.
const LONG: Duration = Duration::from_micros(200);

/// Short requests in succession after which one thread fewer does.
const MANY: u32 = 16;

/// Turns that threads take to serve a filesystem.
#[derive(Debug)]
pub(crate) struct Turns {
    /// All threads.
    threads: usize,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Threads that wait for requests or serve them.
    active: usize,
    /// As many as there are to be, 1 at least.
    wanted: usize,
    /// Short requests since the last long one.
    short: u32,
}

/// A thread's turn, which another thread takes when this ends.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    pub(crate) fn new(threads: usize) -> Self {
        let state = State {
            active: 0,
            wanted: 1,
            short: 0,
        };
        Self {
            threads,
            state: Mutex::new(state),
            freed: Condvar::new(),
        }
    }

    /// Waits for a turn.
    pub(crate) fn take(&self) -> Turn<'_> {
        self.wait(self.state());
        Turn(self)
    }

    /// Notes how long a request took.
    fn note(&self, is_long: bool) -> MutexGuard<'_, State> {
        let mut state = self.state();
        if is_long {
            state.short = 0;
            if state.wanted < self.threads {
                state.wanted += 1;
                self.freed.notify_one();
            }
        } else if state.wanted > 1 {
            state.short += 1;
            if state.short == MANY {
                state.short = 0;
                state.wanted -= 1;
            }
        }
        state
    }

    fn wait(&self, state: MutexGuard<'_, State>) {
        let state = self
            .freed
            .wait_while(state, |state| state.active >= state.wanted);
        state.unwrap_or_else(PoisonError::into_inner).active += 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Serves a request, and waits for another turn if there are more threads than requests need.
    pub(crate) fn serve(&self, serve: impl FnOnce()) {
        let begin = Instant::now();
        serve();
        let turns = self.0;
        let mut state = turns.note(begin.elapsed() >= LONG);
        if state.active > state.wanted {
            state.active -= 1;
            turns.wait(state);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state().active -= 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_second_thread_serves_only_while_requests_take_long() {
        let turns = Turns::new(2);
        let (began, begins) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let turn = turns.take();
            let turns = &turns;
            scope.spawn(move || {
                let turn = turns.take();
                began.send(()).unwrap();
                turn.serve(|| ends.recv().unwrap());
            });
            drop(turns.note(false));
            assert!(begins.try_recv().is_err());
            turn.serve(|| thread::sleep(LONG));
            begins.recv().unwrap();
            for _ in 0..MANY {
                assert_eq!(turns.state().wanted, 2);
                drop(turns.note(false));
            }
            assert_eq!(turns.state().wanted, 1);
            end.send(()).unwrap();
            // The one that ends gives its turn back, and never waits for this one, which still has its own.
            drop(turn);
        });
        assert_eq!(turns.state().active, 0);
    }
}
