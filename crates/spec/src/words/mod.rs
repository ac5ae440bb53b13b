//! The words that people write for settings, as in flags and in options of requests: each type reads its own (`FromStr`).

mod boolean;
mod bytes;
mod confinement;
mod cpus;
mod csv;
mod document;
mod hostname;
mod mount;
mod omitted;
mod period;
mod ports;
mod rate;
mod resolver;
mod security;
mod signal;
mod size;
mod tmpfs;
mod upper;
mod volume;

pub use boolean::boolean;
pub use bytes::Bytes;
pub use confinement::{Capabilities, Limit, Processes};
pub use cpus::Cpus;
pub use document::{all, optional};
pub use hostname::Hostname;
pub use mount::MountWord;
pub use omitted::{OrDefault, OrNone};
pub use period::Period;
pub use ports::{Exposed, Published};
pub use resolver::Resolver;
pub use security::SecurityOption;
pub use signal::Signal;
pub use size::{Memory, Size, is_zero};
pub use tmpfs::TmpfsWord;
pub use volume::VolumeWord;

/// Why a word says nothing: what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WordError(String);

impl<T: Into<String>> From<T> for WordError {
    fn from(why: T) -> Self {
        Self(why.into())
    }
}
