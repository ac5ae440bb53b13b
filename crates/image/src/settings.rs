//! Settings of conversions: limits, parallelism, and where they run.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de};

use crate::Limits;
use crate::convert::Place;

/// How layers are converted and packed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// How many layers of an image are processed at the same time.
    pub parallel_layers: ParallelLayers,
    /// Limits on what a layer may cost.
    pub limits: Limits,
    /// Where layers are converted.
    pub conversion: Place,
    /// The file that says which images may be loaded (containers-policy.json(5)); without it all may.
    pub policy: Option<PathBuf>,
}

/// A number of layers, 1 to 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParallelLayers(usize);

impl ParallelLayers {
    /// Returns `count`, or the nearest number that is allowed.
    pub fn new(count: usize) -> Self {
        Self(count.clamp(1, 16))
    }

    /// Returns the number.
    pub fn get(self) -> usize {
        self.0
    }
}

impl Default for ParallelLayers {
    fn default() -> Self {
        Self(3)
    }
}

impl<'de> Deserialize<'de> for ParallelLayers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match usize::deserialize(deserializer)? {
            count @ 1..=16 => Ok(Self(count)),
            count => Err(de::Error::custom(format!("{count} is not within 1 to 16"))),
        }
    }
}
