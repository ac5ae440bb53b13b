//! The clock of file times.

use micabox_file::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Returns the time of the clock that Linux's filesystems use. The kernel gives times of its own to
/// files whose writes it caches: with a finer clock, a file that was made first could seem newer.
pub(crate) fn now() -> Timestamp {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp {
        seconds: time.tv_sec,
        nanos: u32::try_from(time.tv_nsec).unwrap_or_default(),
    }
}
