//! What can be seen of a guest's work, so that one that is being written to disk is not killed
//! for a slow host.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::process::{processor_time, waits_for_disk};

/// How long a guest may do nothing that is seen while it should end.
pub(super) const LAG: Duration = Duration::from_secs(2);

/// How long a guest may take to kill its commands and to power off; or to write nothing to its
/// disk while it should flush that.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// A guest at work: it has processor time, and writes to its disk if it has one.
#[derive(Debug)]
pub(super) struct Work {
    pid: u32,
    disk: Option<PathBuf>,
    /// Its processor time, and when it was last seen to have some.
    time: Option<u64>,
    ran: Instant,
    /// When its disk was written to and how full it is, and when that was last seen to change.
    state: Option<(i64, i64, u64)>,
    wrote: Instant,
}

impl Work {
    /// Of the machine that this process runs, with this disk.
    pub(super) fn new(pid: u32, disk: Option<&Path>) -> Self {
        let now = Instant::now();
        Self {
            pid,
            disk: disk.map(Path::to_owned),
            time: processor_time(pid),
            ran: now,
            state: disk.and_then(state),
            wrote: now,
        }
    }

    /// Looks once more.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        let time = processor_time(self.pid);
        if time != self.time {
            (self.time, self.ran) = (time, now);
        }
        let state = self.disk.as_deref().and_then(state);
        if state != self.state || self.disk.is_some() && waits_for_disk(self.pid) {
            (self.state, self.wrote) = (state, now);
        }
    }

    /// Whether it has stopped working on what it was told at `since`.
    pub(super) fn is_over(&self, since: Instant) -> bool {
        let wrote = self.wrote.max(since).elapsed();
        wrote > SHUTDOWN_TIMEOUT || self.ran.max(self.wrote).elapsed() > LAG
    }
}

fn state(disk: &Path) -> Option<(i64, i64, u64)> {
    let file = disk.metadata().ok()?;
    Some((file.mtime(), file.mtime_nsec(), file.blocks()))
}
