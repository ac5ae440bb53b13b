//! Caches, and the order in which they evict.

mod blocks;
mod list;
mod lru;
mod memory;
mod pages;

pub(crate) use blocks::{Blocks, Kind, is_index_node};
pub(crate) use lru::{Key, Lru};
pub(crate) use pages::{Chunk, ChunkKey, Pages};
