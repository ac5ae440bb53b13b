//! How long a client may let a transfer wait: silence has an end, and so has a byte now and then.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// The least bytes a second on average, while it is the client that is waited for.
const RATE: f64 = 1024.0;

/// A client's time. What it moves gives it more, and never more than it began with.
#[derive(Debug)]
pub struct Pace {
    most: Duration,
    left: Duration,
    /// Whether a byte now and then is enough.
    is_steady: bool,
    /// What is left for all of a short transfer.
    in_all: Option<Duration>,
    /// Since when it is the client that is waited for, and until when.
    waits: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Pace {
    /// The client may be silent for so long, and after that moves [`RATE`] at least.
    pub fn new(most: Duration) -> Self {
        Self {
            most,
            left: most,
            is_steady: false,
            in_all: None,
            waits: None,
        }
    }

    /// The client may be silent for so long each time, whatever it moves.
    pub fn steady(most: Duration) -> Self {
        Self {
            is_steady: true,
            ..Self::new(most)
        }
    }

    /// Bounds what is left of the transfer as a whole.
    pub fn set_total(&mut self, time: Duration) {
        self.in_all = Some(time);
    }

    /// Returns how long the client may be silent now.
    fn silence(&self) -> Duration {
        self.in_all.unwrap_or(Duration::MAX).min(self.left)
    }

    /// Notes that so many bytes have moved, and how long they were waited for.
    fn took(&mut self, time: Duration, bytes: usize) {
        if let Some(left) = &mut self.in_all {
            *left = left.saturating_sub(time);
        }
        // No transfer at a time is so long that it matters.
        #[expect(clippy::cast_precision_loss, reason = "the rate is no exact one")]
        let earned = Duration::from_secs_f64(bytes as f64 / RATE);
        let left = self.left.saturating_sub(time).saturating_add(earned);
        self.left = if self.is_steady {
            self.most
        } else {
            left.min(self.most)
        };
    }

    /// Notes that bytes have moved.
    pub fn moved(&mut self, bytes: usize) {
        let waited = self.waits.take().map(|(since, _)| since.elapsed());
        self.took(waited.unwrap_or_default(), bytes);
    }

    /// Waits for the client: ready if it takes too long.
    pub fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let silence = self.silence();
        let (_, until) = self.waits.get_or_insert_with(|| {
            let now = Instant::now();
            (now, Box::pin(sleep_until(now + silence)))
        });
        until.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(60);

    /// Returns how long a client lasts that moves so many bytes each twenty seconds; None if for a day.
    fn lasts(mut pace: Pace, bytes: usize) -> Option<Duration> {
        let step = Duration::from_secs(20);
        let mut lasted = Duration::ZERO;
        while lasted < Duration::from_secs(86_400) {
            if pace.silence() < step {
                return Some(lasted + pace.silence());
            }
            lasted += step;
            pace.took(step, bytes);
        }
        None
    }

    #[test]
    fn a_byte_now_and_then_is_no_transfer() {
        let seconds = |pace, bytes| lasts(pace, bytes).map(|lasted| lasted.as_secs());
        assert_eq!(seconds(Pace::new(MOST), 1), Some(60));
        let lasted = seconds(Pace::new(MOST), 8 << 10).unwrap();
        assert!((80..200).contains(&lasted), "{lasted}");
        assert_eq!(seconds(Pace::new(MOST), 20 << 10), None);
        assert_eq!(seconds(Pace::steady(MOST), 1), None);
        // What was fast for long lets the client be silent for no longer.
        let mut fast = Pace::new(MOST);
        fast.took(Duration::ZERO, 1 << 30);
        assert_eq!(seconds(fast, 0), Some(60));
        let mut short = Pace::new(MOST);
        short.set_total(MOST * 2);
        assert_eq!(seconds(short, 1 << 20), Some(120));
    }
}
