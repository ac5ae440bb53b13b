//! The umask: ours, whatever the caller's is, so that files of the store and trees of jails are what they have to be; and
//! the user's, for what is the user's own.

use std::sync::OnceLock;

use rustix::fs::Mode;
use rustix::process::umask;

/// Permissions that new files lack: others may not write.
const OURS: Mode = Mode::WGRP.union(Mode::WOTH);

static USERS: OnceLock<Mode> = OnceLock::new();

/// Sets ours, first of all.
pub fn set_ours() {
    let _ = USERS.set(umask(OURS));
}

/// Does something with the user's: starts a command of theirs, or makes a directory at a place that they name.
pub fn with_users<T>(work: impl FnOnce() -> T) -> T {
    let ours = USERS.get().map(|users| umask(*users));
    let done = work();
    ours.map(umask);
    done
}
