#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod below;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod kept;
mod layer;
mod place;
mod server;

pub use error::Error;
pub use kept::{KeepError, LOADER, Refusal, load, save};
pub use layer::Layer;
pub use micabox_memfs::{Filesystem, Limits, Lower, Usage};
pub use place::{Manner, Place, Shown, Target, unmount};
pub use server::{Cache, Frozen, Tree};
