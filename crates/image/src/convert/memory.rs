//! Memory for a layer's metadata: all of it is held until the layer is finished.
//!
//! Names and attributes compress well, so a small blob could take much of it. No layer that is
//! built for use takes more than some twenty times its blob.

use crate::Limits;
use crate::limits::Limit;

/// Memory of one layer, as [`Limits::metadata_size`] counts it.
pub(super) struct Memory {
    used: u64,
    limits: Limits,
    /// Size of the blob in bytes, if it is known.
    blob: Option<u64>,
}

/// The limit that a layer exceeds.
#[derive(Debug)]
pub(super) struct Exceeded {
    pub setting: Limit,
    pub limit: u64,
}

impl Memory {
    pub fn new(limits: &Limits, blob: Option<u64>) -> Self {
        Self {
            used: 0,
            limits: limits.clone(),
            blob,
        }
    }

    /// Counts `bytes` more.
    pub fn take(&mut self, bytes: u64) -> Result<(), Exceeded> {
        self.used = self.used.saturating_add(bytes);
        self.check(self.used)
    }

    /// Checks that a layer may take as much as `bytes` in all.
    pub fn check(&self, bytes: u64) -> Result<(), Exceeded> {
        let limits = &self.limits;
        if bytes > limits.metadata_size {
            return Err(Exceeded {
                setting: Limit::MetadataSize,
                limit: limits.metadata_size,
            });
        }
        let ratio = limits.metadata_ratio;
        let is_small = |blob| bytes / ratio.max(1) > blob;
        if bytes > limits.metadata_ratio_from && self.blob.is_some_and(is_small) {
            return Err(Exceeded {
                setting: Limit::MetadataRatio,
                limit: ratio,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_blob_takes_little_memory_and_a_large_one_all_that_is_allowed() {
        let limits = Limits {
            metadata_size: 1000,
            metadata_ratio: 10,
            metadata_ratio_from: 100,
            ..Limits::default()
        };
        let most = |blob| {
            let memory = Memory::new(&limits, blob);
            let fits = |bytes: &u64| memory.check(*bytes).is_ok();
            (0..=2000).take_while(fits).last()
        };
        assert_eq!(most(Some(1)), Some(100));
        assert_eq!(most(Some(50)), Some(509));
        assert_eq!(most(Some(500)), Some(1000));
        assert_eq!(most(None), Some(1000));
        let mut memory = Memory::new(&limits, Some(1));
        memory.take(60).unwrap();
        assert_eq!(memory.take(60).unwrap_err().setting, Limit::MetadataRatio);
        assert_eq!(
            memory.take(u64::MAX).unwrap_err().setting,
            Limit::MetadataSize
        );
    }
}
