//! A token bucket: how much may pass in a second, and how long to wait.
//!
//! The bucket never sleeps and has no clock: its user asks it at a time, and sets a timer of its
//! own. Whatever is taken passes as a whole, even if it is larger than what is left; the debt is
//! waited for afterwards. So there is no largest unit, and a rate holds on average for any.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// The part of a second for which an idle bucket saves.
const BURST: u64 = 10;

const NANOS: u128 = 1_000_000_000;

/// A bucket, which fills at a constant rate.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Tokens a second.
    rate: u64,
    /// Tokens at the time `at`, multiplied with [`NANOS`]; negative is a debt.
    level: i128,
    at: Instant,
}

impl Bucket {
    /// Creates a bucket for `rate` tokens a second, at least one, full at the time `now`: with a
    /// tenth of a second's tokens.
    pub fn new(rate: u64, now: Instant) -> Self {
        let mut bucket = Self {
            rate: rate.max(1),
            level: 0,
            at: now,
        };
        bucket.level = bucket.most();
        bucket
    }

    /// Takes tokens, into debt if there are fewer.
    pub fn take(&mut self, tokens: u64) {
        let taken = i128::from(tokens) * NANOS.cast_signed();
        self.level = self.level.saturating_sub(taken);
    }

    /// Returns how long the bucket is without tokens from `now` on; None if it has some.
    pub fn wait(&mut self, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        let gained = passed.as_nanos().saturating_mul(self.rate.into());
        let gained = i128::try_from(gained).unwrap_or(i128::MAX);
        self.level = self.level.saturating_add(gained).min(self.most());
        if self.level > 0 {
            return None;
        }
        let nanos = self.level.unsigned_abs() / u128::from(self.rate) + 1;
        Some(Duration::from_nanos(
            u64::try_from(nanos).unwrap_or(u64::MAX),
        ))
    }

    fn most(&self) -> i128 {
        i128::from((self.rate / BURST).max(1)) * NANOS.cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Takes `unit` again and again for ten seconds, waiting as long as the bucket says. Returns how
    /// much was taken.
    fn taken_in_ten_seconds(rate: u64, unit: u64) -> u64 {
        let start = Instant::now();
        let (mut now, mut taken) = (start, 0);
        let mut bucket = Bucket::new(rate, now);
        while now < start + 10_000 * MS {
            match bucket.wait(now) {
                Some(wait) => now += wait,
                None => {
                    bucket.take(unit);
                    taken += unit;
                }
            }
        }
        taken
    }

    #[test]
    fn a_rate_holds_on_average_whatever_the_unit_is() {
        for (rate, unit) in [
            (1000, 1),
            (1000, 37),
            (50 << 20, 1 << 20),
            (100, 700),
            (1, 1),
        ] {
            let taken = taken_in_ten_seconds(rate, unit);
            let wanted = 10 * rate;
            assert!(taken >= wanted, "{rate} {unit}: {taken}");
            assert!(
                taken <= wanted + rate / BURST + 2 * unit,
                "{rate} {unit}: {taken}"
            );
        }
    }

    #[test]
    fn an_idle_bucket_saves_for_a_burst_only() {
        let start = Instant::now();
        let mut bucket = Bucket::new(1000, start);
        let later = start + 3_600_000 * MS;
        assert_eq!(bucket.wait(later), None);
        bucket.take(100);
        assert!(bucket.wait(later).is_some());
        // Time does not go backwards, and nothing overflows.
        assert!(bucket.wait(start).is_some());
        bucket.take(u64::MAX);
        bucket.take(u64::MAX);
        assert!(bucket.wait(later).is_some());
        assert_eq!(Bucket::new(0, start).rate, 1);
    }
}
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
