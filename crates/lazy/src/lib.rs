#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod ahead;
mod asking;
mod blob;
mod image;
mod incoming;
mod inflate;
mod order;
mod part_file;

pub use ahead::{AHEAD_ROOM, Ahead};
pub use asking::Fetched;
pub use blob::{Blob, LARGEST};
pub use image::Image;
pub use incoming::Fetch;
pub use inflate::{INFLATER, Inflaters};
pub use order::{Order, Recorder};
pub use part_file::{Packs, PartFile};
