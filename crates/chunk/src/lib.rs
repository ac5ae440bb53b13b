#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cut;
mod index;
mod map;
mod writer;

pub use cut::{Cuts, LARGEST, SMALLEST};
pub use index::{ChunkError, Compression, Index, IndexError, MEDIA_TYPE, MOST_INDEX};
pub use map::{CHUNK, Entry, MOST_MAP, Map, MapError};
pub use writer::{FRAME_HEADER, LEVEL, Writer, Written, compress, zstd_version};
