#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod below;
mod error;
mod kept;
mod layer;
mod place;
mod server;

pub use error::Error;
pub use kept::{KeepError, Output, load, save};
pub use layer::Layer;
pub use micabox_memfs::{Filesystem, Limits, Lower, Usage};
pub use place::{Manner, Place, Shown, unmount};
pub use server::{Cache, Frozen, Tree};
