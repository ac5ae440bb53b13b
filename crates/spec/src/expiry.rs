//! When a sandbox ends by itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// When a sandbox ends by itself, as if it was stopped. A zero duration stands for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expiry {
    /// When it has had no command and no client for so long.
    pub idle_timeout: Option<Duration>,
    /// When it has been ready for commands for so long.
    pub max_life: Option<Duration>,
}

impl Expiry {
    /// Returns the same with what `other` has; zero is never.
    #[must_use]
    pub fn changed(self, other: &Self) -> Self {
        let set = |is: Option<Duration>, wish: Option<Duration>| match wish {
            None => is,
            Some(Duration::ZERO) => None,
            wish => wish,
        };
        Self {
            idle_timeout: set(self.idle_timeout, other.idle_timeout),
            max_life: set(self.max_life, other.max_life),
        }
    }
}
