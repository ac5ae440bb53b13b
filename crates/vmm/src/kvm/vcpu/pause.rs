//! Pauses virtual processors while their machine is paused or saved.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvm_ioctls::VcpuFd;
use micabox_ground::lock;

use super::{Error, State};

/// Interval at which a processor that still runs is signalled again: the first signal may have
/// arrived just before it entered the guest.
const REPEAT: Duration = Duration::from_millis(1);

/// How long processors may take to stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether processors must pause, and the states of those that did.
pub(crate) struct Pause {
    /// The same as in `state`, to read without the lock.
    wanted: AtomicBool,
    state: Mutex<Processors>,
    changed: Condvar,
    /// The model-specific registers to save.
    model_registers: Vec<u32>,
}

struct Processors {
    wanted: bool,
    /// Whether each processor is paused, by number.
    still: Vec<bool>,
    /// The states of paused processors, by number.
    saved: BTreeMap<usize, Result<State, String>>,
}

impl Processors {
    fn set(&mut self, index: usize, still: bool) {
        if let Some(place) = self.still.get_mut(index) {
            *place = still;
        }
    }
}

impl Pause {
    /// Creates the pause of `count` processors, all of which run.
    pub(crate) fn new(count: usize, model_registers: Vec<u32>) -> Self {
        Self {
            wanted: AtomicBool::new(false),
            state: Mutex::new(Processors {
                wanted: false,
                still: vec![false; count],
                saved: BTreeMap::new(),
            }),
            changed: Condvar::new(),
            model_registers,
        }
    }

    /// Returns whether the processor must pause ([`Pause::rest`]). Called on its thread.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Saves the processor's state and waits until the processor may continue. Called on its
    /// thread.
    pub(super) fn rest(&self, index: usize, vcpu: &VcpuFd) {
        let saved =
            State::of(vcpu, &self.model_registers).map_err(|error: Error| error.to_string());
        let mut state = lock(&self.state);
        state.saved.insert(index, saved);
        state.set(index, true);
        self.changed.notify_all();
        while state.wanted {
            state = lock::ignore_poison(self.changed.wait(state));
        }
        state.set(index, false);
        self.changed.notify_all();
        drop(state);
        // Tells the guest's watchdogs not to count the time that has passed. Fails in a guest
        // without KVM's clock.
        let _ = vcpu.kvmclock_ctrl();
    }

    /// Pauses all processors. Returns their states, or why one can't be saved.
    ///
    /// # Errors
    /// If they don't stop.
    pub(crate) fn stop(
        &self,
        threads: &[JoinHandle<()>],
    ) -> Result<Vec<Result<State, String>>, String> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = lock(&self.state);
        state.wanted = true;
        self.wanted.store(true, Ordering::Release);
        while !state.still.iter().all(|still| *still) {
            if Instant::now() > deadline || threads.iter().any(JoinHandle::is_finished) {
                return Err("its processors don't stop".to_owned());
            }
            for (thread, still) in threads.iter().zip(&state.still) {
                if !still {
                    // SAFETY: the thread is not joined, so the handle names it.
                    unsafe {
                        libc::pthread_kill(thread.as_pthread_t() as libc::pthread_t, signal())
                    };
                }
            }
            let waited = self.changed.wait_timeout(state, REPEAT);
            state = lock::ignore_poison(waited).0;
        }
        Ok(std::mem::take(&mut state.saved).into_values().collect())
    }

    /// Resumes the processors.
    pub(crate) fn resume(&self) {
        let mut state = lock(&self.state);
        state.wanted = false;
        self.wanted.store(false, Ordering::Release);
        self.changed.notify_all();
        // Waits until all have left the pause, so that the next [`Pause::stop`] does not take the
        // states of this one.
        while state.still.iter().any(|still| *still) {
            state = lock::ignore_poison(self.changed.wait_timeout(state, REPEAT)).0;
        }
    }
}

fn signal() -> libc::c_int {
    libc::SIGRTMIN()
}

/// Makes the signal interrupt system calls and do nothing else. Must be called before processors
/// run.
pub(crate) fn catch_signal() -> io::Result<()> {
    extern "C" fn nothing(_signal: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: plain data, valid when zero: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    // SAFETY: the handler does nothing.
    match unsafe { libc::sigaction(signal(), &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
