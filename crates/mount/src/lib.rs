#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
mod kept;
mod layer;
mod place;
mod server;

pub use error::Error;
pub use kept::{KeepError, load, save};
pub use layer::Layer;
pub use micabox_memfs::{Filesystem, Limits, Usage};
pub use place::{Manner, Place};
pub use server::Cache;

use std::thread::available_parallelism;

use micabox_fuse::Channel;
use server::Tree;

/// Most threads that serve a filesystem.
const THREADS: usize = 8;

/// Answers the kernel's requests about a mounted filesystem until it is unmounted.
///
/// # Errors
/// [`Error::Serving`].
pub fn serve(place: &Place, files: &Filesystem, cache: Cache) -> Result<(), Error> {
    let threads = available_parallelism().map_or(2, |count| count.get().clamp(2, THREADS));
    let channels: Result<Vec<_>, _> = (0..threads).map(|_| place.channel()).collect();
    let channels: Vec<Channel> = channels.map_err(Error::Serving)?;
    let tree = Tree { files, cache };
    micabox_fuse::serve(&channels, &tree).map_err(Error::Serving)
}
