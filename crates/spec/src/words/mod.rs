//! The words that people write for settings, as in flags and in options of requests: each type reads its own (`FromStr`).

mod confinement;
mod cpus;
mod hostname;
mod period;
mod rate;
mod resolver;
mod signal;
mod size;
mod upper;

pub use confinement::{Capabilities, Processes, ulimit};
pub use cpus::Cpus;
pub use hostname::Hostname;
pub use period::Period;
pub use resolver::Resolver;
pub use signal::Signal;
pub use size::{Memory, Size, is_zero};

/// Why a word says nothing: what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WordError(String);

impl<T: Into<String>> From<T> for WordError {
    fn from(why: T) -> Self {
        Self(why.into())
    }
}
