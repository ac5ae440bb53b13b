#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cut;
mod image;
mod known;
mod list;
mod packer;
mod recent;

pub use cut::{Cut, LARGEST, Piece};
pub use image::{Cache, Image};
pub use known::Known;
pub use list::{Chunk, Frame, List, ListError, Place};
pub use packer::{FRAME, MAGIC, Pack, Packed, Packer};
pub use recent::Recent;
