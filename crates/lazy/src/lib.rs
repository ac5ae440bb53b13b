#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod blob;
mod image;
mod inflate;
mod order;

pub use blob::{Blob, LARGEST};
pub use image::{Fetch, Image};
pub use inflate::{INFLATER, Inflaters};
pub use order::{Order, Recorder};
