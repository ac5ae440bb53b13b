//! The signals that mica receives, most of them for the command.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use micabox::Cancel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use signal_hook::consts::{
    SIGABRT, SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGTSTP, SIGURG,
    SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH, SIGXCPU, SIGXFSZ,
};
use signal_hook::low_level::emulate_default_handler;

use super::terminal;
use micabox_program::failure::Failure;

/// Signals with a name that mica handles or passes on. The others tell of a fault of the process itself
/// (SIGSEGV and its like), of its children and pipes, or can't be caught; and a process that was stopped since it
/// used the terminal (SIGTTIN, SIGTTOU) has to stop.
const NAMED: [i32; 17] = [
    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT, SIGWINCH, SIGABRT,
    SIGTSTP, SIGURG, SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF, SIGIO,
];

/// Those without a name on every architecture that is supported: SIGSTKFLT and SIGPWR (signal(7)).
const LINUXES: [i32; 2] = [16, 30];

/// The real-time signals, but for those that C libraries use themselves.
const REAL_TIME: std::ops::RangeInclusive<i32> = 35..=64;

/// The first of the real-time signals that programs see, which musl uses itself.
const FIRST_REAL_TIME: i32 = 34;

/// Whether a signal asks a process to end.
pub fn asks_for_end(signal: i32) -> bool {
    matches!(signal, SIGINT | SIGTERM | SIGHUP | SIGQUIT)
}

/// Whether a signal ends a process that does not handle it.
pub fn ends_processes(signal: i32) -> bool {
    !matches!(signal, SIGCONT | SIGWINCH | SIGURG | SIGTSTP)
}

/// The signals that this process receives.
pub struct Signals {
    started: Arc<AtomicBool>,
    /// Their numbers, a byte each.
    inbox: UnixStream,
}

impl Signals {
    /// Catches signals from now on. Until a sandbox has started, a signal that asks for an end cancels the
    /// start.
    pub fn catch(cancel: Cancel) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::of(&error).context("setting up signals");
        let is_deaf = hangs_up_unheard();
        let named = NAMED
            .into_iter()
            .filter(|signal| *signal != SIGHUP || !is_deaf);
        let mut signals =
            signal_hook::iterator::Signals::new(named.chain(LINUXES).chain(REAL_TIME))
                .map_err(failed)?;
        // Refused where a C library has it.
        let _ = signals.add_signal(FIRST_REAL_TIME);
        let (inbox, mut sender) = UnixStream::pair().map_err(failed)?;
        inbox.set_nonblocking(true).map_err(failed)?;
        let started = Arc::new(AtomicBool::new(false));
        let thread = {
            let started = Arc::clone(&started);
            move || {
                for signal in signals.forever() {
                    if signal == SIGTSTP && terminal::is_foreground() {
                        // From the keyboard: the shell gets its terminal.
                        let _ = emulate_default_handler(SIGTSTP);
                        continue;
                    }
                    if asks_for_end(signal) && !started.load(Ordering::Acquire) {
                        cancel.cancel();
                    }
                    if sender.write_all(&[signal as u8]).is_err() {
                        return;
                    }
                }
            }
        };
        let spawned = std::thread::Builder::new().name("signals".into());
        spawned.spawn(thread).map_err(failed)?;
        Ok(Self { started, inbox })
    }

    /// From now on, no signal cancels the start.
    pub fn begin(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Takes the signals that have arrived.
    pub fn take(&self) -> Vec<i32> {
        let mut numbers = [0; 64];
        let count = (&self.inbox).read(&mut numbers).unwrap_or(0);
        let numbers = numbers.get(..count).unwrap_or_default();
        numbers.iter().copied().map(i32::from).collect()
    }

    /// Stops cancelling the start at a signal that asks for an end.
    pub fn started(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Waits for a signal that asks for an end, for at most `timeout`. Returns whether one came.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        let timeout = Timespec::try_from(timeout).ok();
        let mut ready = [PollFd::new(&self.inbox, PollFlags::IN)];
        let _ = poll(&mut ready, timeout.as_ref());
        self.first_ending().is_some()
    }

    /// Takes the signals so far, and returns the first one that asks for an end.
    pub fn first_ending(&self) -> Option<i32> {
        self.take().into_iter().find(|signal| asks_for_end(*signal))
    }
}

impl AsFd for Signals {
    /// Returns a descriptor that is readable when [`Signals::take`] has some.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.as_fd()
    }
}

/// Whether this process was started so that hangups don't reach it (`nohup`).
fn hangs_up_unheard() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (SIGHUP - 1)) != 0)
}
