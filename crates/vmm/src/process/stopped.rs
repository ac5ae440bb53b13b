//! Stops a process (`SIGSTOP`): this pauses a machine whose process takes no requests and is the
//! only one that writes to its disks. A machine of several processes is frozen.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use micabox_jail::Freezer;
use rustix::process::{Signal, pidfd_send_signal};

/// Freezes the processes of a control group, runs `meanwhile`, and lets them run again. Without a freezer
/// there is a reason for it.
pub(super) fn freeze(
    freezer: &Result<Freezer, String>,
    meanwhile: &mut dyn FnMut(),
) -> Result<(), String> {
    let freezer = freezer.as_ref().map_err(String::clone)?;
    freezer.freeze().map_err(|error| error.to_string())?;
    meanwhile();
    freezer.thaw().map_err(|error| error.to_string())
}

/// How long the process may take to stop: a thread may be in the middle of a write.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often its state is checked.
const POLL: Duration = Duration::from_millis(1);

/// A process that is stopped until this is dropped.
pub(super) struct Stopped<'a>(&'a OwnedFd);

impl<'a> Stopped<'a> {
    /// Stops the process that `handle` and `pid` refer to, which its parent must not have waited
    /// for yet, and waits until all of its threads are stopped.
    pub(super) fn new(handle: &'a OwnedFd, pid: u32) -> io::Result<Self> {
        let stopped = Self(handle);
        match pidfd_send_signal(handle, Signal::STOP) {
            // The process is gone, so it can't run.
            Err(rustix::io::Errno::SRCH) => return Ok(stopped),
            result => result?,
        }
        let deadline = Instant::now() + PATIENCE;
        while !is_stopped(pid) {
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(POLL);
        }
        Ok(stopped)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let _ = pidfd_send_signal(self.0, Signal::CONT);
    }
}

/// Returns whether all threads of a process are stopped; also true if the process is gone.
fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    threads.flatten().all(|thread| {
        let bytes = fs::read(thread.path().join("stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&bytes);
        // The name, in parentheses, may contain any character.
        let state = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.trim_start().chars().next());
        matches!(state, Some('T' | 't' | 'Z' | 'X') | None)
    })
}
