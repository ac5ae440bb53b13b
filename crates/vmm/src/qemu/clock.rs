//! Measures the frequency of the host's time stamp counter.
//!
//! QEMU's emulator passes the host's counter through. A guest's kernel that knows its frequency
//! need not measure it against emulated timers, which takes long and, on a busy host, fails.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use crate::cpu::Flags;

/// The minimum time between two readings; closer ones are too inaccurate.
const LEAST: Duration = Duration::from_millis(10);

/// A reading of the counter and of the clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    ticks: u64,
    at: Instant,
}

impl Reading {
    /// Reads counter and clock; None where the counter does not count evenly.
    pub(super) fn now(flags: &Flags) -> Option<Self> {
        flags.counts_evenly.then(Self::read)?
    }

    /// Returns the fastest of a few tries: the thread may be interrupted between reading the
    /// counter and the clock.
    fn read() -> Option<Self> {
        const TRIES: usize = 5;
        let tries = (0..TRIES).filter_map(|_| {
            let reading = Self {
                ticks: ticks()?,
                at: Instant::now(),
            };
            Some((ticks()?.wrapping_sub(reading.ticks), reading))
        });
        let best = tries.min_by_key(|(took, _)| *took);
        best.map(|(_, reading)| reading)
    }

    /// Returns the counter's frequency in kHz, from this reading and another one now. Sleeps first
    /// if this one is too recent.
    pub(super) fn frequency_khz(&self) -> Option<u32> {
        std::thread::sleep(LEAST.saturating_sub(self.at.elapsed()));
        let later = Self::read()?;
        let nanos = later.at.duration_since(self.at).as_nanos();
        frequency_khz(later.ticks.checked_sub(self.ticks)?, nanos)
    }
}

fn frequency_khz(ticks: u64, nanos: u128) -> Option<u32> {
    /// Frequencies in kHz that processors have; any other is a measuring error.
    const PLAUSIBLE: std::ops::Range<u32> = 100_000..20_000_000;
    // Ticks a nanosecond, times a million, are ticks a millisecond.
    let khz = u128::from(ticks)
        .checked_mul(1_000_000)?
        .checked_div(nanos)?;
    u32::try_from(khz)
        .ok()
        .filter(|khz| PLAUSIBLE.contains(khz))
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    // SAFETY: every x86-64 processor has the instruction, and Linux allows it.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_nanoseconds_give_kilohertz() {
        assert_eq!(frequency_khz(23_000_000, 10_000_000), Some(2_300_000));
        assert_eq!(frequency_khz(23_000_000, 0), None);
        assert_eq!(frequency_khz(1, 10_000_000), None);
        assert_eq!(frequency_khz(u64::MAX, 1), None);
    }

    #[test]
    fn two_measurements_of_the_clock_agree() {
        let flags = Flags::read();
        let Some(reading) = Reading::now(&flags) else {
            assert!(!flags.counts_evenly, "no reading of a good counter");
            return;
        };
        let (one, two) = (reading.frequency_khz(), reading.frequency_khz());
        let (one, two) = (one.unwrap(), two.unwrap());
        assert!(one.abs_diff(two) < one / 1000, "{one} {two}");
    }
}
