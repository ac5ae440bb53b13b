//! Waits for the true end of something, for as long as a busy machine may take.
//!
//! | what | how |
//! |---|---|
//! | the end of a process that the test started | [`wait`] |
//! | the end of another process | [`wait_until`], of [`exists`](crate::exists) |
//! | bytes, a message, a connection | reading, with [`PATIENCE`] as the timeout |
//! | a lock, a mount, a file, a record, an answer of a server | [`wait_until`], of what shows it |
//!
//! `scripts/sleeps --list` has what still sleeps in tests, each with its reason.

use std::fmt::Debug;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A timeout far longer than any step takes: only a hang reaches it.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Interval between questions.
const POLL: Duration = Duration::from_millis(10);

/// Waits until `done` returns true.
///
/// # Panics
/// If it never does.
#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        // Sleep: the interval between questions.
        std::thread::sleep(POLL);
    }
}

/// Waits until nothing is left.
///
/// # Panics
/// If something stays, with its name.
#[track_caller]
pub fn wait_until_none<T: Debug>(what: &str, mut left: impl FnMut() -> Vec<T>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = left();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{what} never end: {left:?}");
        // Sleep: the interval between questions.
        std::thread::sleep(POLL);
    }
}

/// Waits for a process's end. Returns its exit code, or minus the signal.
///
/// # Panics
/// If it never ends.
#[track_caller]
pub fn wait(child: &mut Child) -> i32 {
    if child.try_wait().unwrap().is_none() {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
        let patience = Timespec::try_from(PATIENCE).unwrap();
        let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience)).unwrap();
        assert_eq!(ended, 1, "process {} never ends", child.id());
    }
    let status = child.wait().unwrap();
    let signal = status.signal().map(|signal| -signal);
    status.code().or(signal).unwrap()
}
