//! Points in time.

#[cfg(feature = "std")]
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time, with the precision of Linux's file times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: since.subsec_nanos(),
        }
    }
}

#[cfg(feature = "std")]
impl Timestamp {
    /// Returns the time as the system's; None if it is out of range.
    #[must_use]
    pub fn system(self) -> Option<SystemTime> {
        let whole = Duration::from_secs(self.seconds.unsigned_abs());
        let second = match self.seconds {
            0.. => UNIX_EPOCH.checked_add(whole),
            _ => UNIX_EPOCH.checked_sub(whole),
        };
        second?.checked_add(Duration::from_nanos(self.nanos.into()))
    }
}

#[cfg(feature = "std")]
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Self {
                seconds: seconds(since),
                nanos: since.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let whole = -seconds(before);
                match before.subsec_nanos() {
                    0 => Self {
                        seconds: whole,
                        nanos: 0,
                    },
                    nanos => Self {
                        seconds: whole - 1,
                        nanos: 1_000_000_000 - nanos,
                    },
                }
            }
        }
    }
}
