//! Limits the requests to a disk.

use std::time::{Duration, Instant};

use micabox_rate::Bucket;

use micabox_spec::DiskRate;

/// The buckets of a disk; those without a limit are missing.
#[derive(Debug)]
pub(crate) struct Throttle {
    read: Option<Bucket>,
    written: Option<Bucket>,
    operations: Option<Bucket>,
}

impl Throttle {
    pub(crate) fn new(rate: &DiskRate, now: Instant) -> Self {
        let bucket = |rate: Option<u64>| rate.map(|rate| Bucket::new(rate, now));
        Self {
            read: bucket(rate.read),
            written: bucket(rate.write),
            operations: bucket(rate.operations),
        }
    }

    /// Returns how long the next request must wait. What it is, is not known yet: all requests wait
    /// for what any of them has used up, as their order must not change.
    pub(super) fn wait(&mut self) -> Option<Duration> {
        let mut buckets = self.buckets().flatten().peekable();
        buckets.peek()?;
        let now = Instant::now();
        buckets.filter_map(|bucket| bucket.wait(now)).max()
    }

    /// Counts a request that was served, with the bytes that the guest gave and got.
    pub(super) fn count(&mut self, read: u64, written: u64) {
        for (bucket, tokens) in self.buckets().zip([read, written, 1]) {
            if let Some(bucket) = bucket {
                bucket.take(tokens);
            }
        }
    }

    fn buckets(&mut self) -> impl Iterator<Item = Option<&mut Bucket>> {
        [&mut self.read, &mut self.written, &mut self.operations]
            .into_iter()
            .map(Option::as_mut)
    }
}
