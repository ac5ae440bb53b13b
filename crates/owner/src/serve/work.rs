//! Observes a guest's activity from outside, so that a guest that is still flushing on a slow host
//! is not killed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::process::{processor_time, waits_for_disk};

/// How long a guest that should end may show no activity.
pub const LAG: Duration = Duration::from_secs(2);

/// How long a guest may take to kill its commands and to power off, and its machine and owner to
/// exit; and how long a guest that should flush may write nothing to its disk.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a guest may take to flush its memory to its disk. A host whose disk is busy needs long
/// for a large guest, and killing the guest would lose data.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(600);

/// A guest's activity: its use of processor time, and its writes to its disk or folder if it has one.
#[derive(Debug)]
pub(super) struct Work {
    pid: u32,
    disk: Option<PathBuf>,
    /// The process that writes to it, by itself or in a descendant.
    writer: u32,
    /// Its processor time, and when that last changed.
    time: Option<u64>,
    ran: Instant,
    /// The disk file's mtime (seconds, nanoseconds) and allocated blocks, and when these last
    /// changed.
    state: Option<(i64, i64, u64)>,
    wrote: Instant,
}

impl Work {
    /// Begins to observe the machine run by process `pid`, with this disk.
    pub(super) fn new(pid: u32, disk: Option<&Path>) -> Self {
        let now = Instant::now();
        Self {
            pid,
            disk: disk.map(Path::to_owned),
            // A folder is written to by its server, which is this process's child.
            writer: match disk {
                Some(disk) if disk.is_dir() => std::process::id(),
                _ => pid,
            },
            time: processor_time(pid),
            ran: now,
            state: disk.and_then(state),
            wrote: now,
        }
    }

    /// Takes another sample.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        let time = processor_time(self.pid);
        if time != self.time {
            (self.time, self.ran) = (time, now);
        }
        let state = self.disk.as_deref().and_then(state);
        if state != self.state || self.disk.is_some() && waits_for_disk(self.writer) {
            (self.state, self.wrote) = (state, now);
        }
    }

    /// Returns whether the guest has stopped working on the request that was sent at `since`.
    pub(super) fn is_over(&self, since: Instant) -> bool {
        let wrote = self.wrote.max(since).elapsed();
        wrote > SHUTDOWN_TIMEOUT || self.ran.max(self.wrote).elapsed() > LAG
    }
}

fn state(disk: &Path) -> Option<(i64, i64, u64)> {
    let file = disk.metadata().ok()?;
    Some((file.mtime(), file.mtime_nsec(), file.blocks()))
}
