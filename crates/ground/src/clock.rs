//! The time of day, since 1970-01-01 UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time of day; zero before 1970.
pub fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Returns the time of day as the kernel has it: seconds, and nanoseconds below 1,000,000,000.
pub fn now_as_parts() -> (i64, u32) {
    let now = now();
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    (seconds, now.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_the_same_time() {
        let (before, (seconds, nanos), after) = (now(), now_as_parts(), now());
        let between = Duration::new(seconds.unsigned_abs(), nanos);
        assert!(before <= between && between <= after);
    }
}
