//! Points in time.

#[cfg(feature = "std")]
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time, with the precision of Linux's file times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
        if self.nanos >= 1_000_000_000 {
            return None;
        }
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
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Self {
                seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                nanos: since.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let whole = 0_i64.saturating_sub_unsigned(before.as_secs());
                match before.subsec_nanos() {
                    0 => Self {
                        seconds: whole,
                        nanos: 0,
                    },
                    nanos => Self {
                        seconds: whole.saturating_sub(1),
                        nanos: 1_000_000_000 - nanos,
                    },
                }
            }
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn the_systems_times_are_converted_without_loss_as_far_as_they_reach() {
        for seconds in [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX] {
            for nanos in [0, 1, 999_999_999] {
                let time = Timestamp { seconds, nanos };
                let system = time.system().unwrap();
                assert_eq!(Timestamp::from(system), time);
            }
        }
        for nanos in [1_000_000_000, u32::MAX] {
            assert_eq!(Timestamp { seconds: 0, nanos }.system(), None);
        }
    }
}
