//! Points in time.

/// A point in time, with the precision of Linux's file times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC; negative before.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, 0 to 999,999,999.
    pub nanos: u32,
}

impl Timestamp {
    /// 1970-01-01 UTC.
    pub const EPOCH: Self = Self {
        seconds: 0,
        nanos: 0,
    };

    /// Returns the time of the system's clock.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn now() -> Self {
        use std::time::{SystemTime, UNIX_EPOCH};
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: since.subsec_nanos(),
        }
    }
}
