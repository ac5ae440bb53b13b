//! How a stored layer becomes the archive again that it was made from, byte for byte.
//!
//! The filesystem image has every file's contents, those of replaced files included. What it
//! lacks of the archive (headers, padding, what follows the end) is in a recipe beside it,
//! and so is where in the image each body lies. The idea is that of tar-split, which Docker
//! and Podman keep beside unpacked layers.
//!
//! A recipe is one zstd stream. Inside are [`MAGIC`] and then steps, each a byte that says
//! which, and numbers as LEB128:
//!
//! | byte | numbers | what comes next in the archive |
//! |---|---|---|
//! | 0 | | nothing: the end |
//! | 1 | length | as many bytes, which follow here |
//! | 2 | length | as many zeros |
//! | 3 | length, distance | as many bytes of the image |
//!
//! `distance` (zigzag, so that small numbers of either sign are short) leads from the first
//! block's beginning after the bytes of the last such step to the first byte of this one:
//! bodies lie in the order of the archive, so it is almost always 0. Both ends work with
//! fixed buffers, whatever the layer's size.

mod read;
mod write;

pub(crate) use read::Recipe;
pub(crate) use write::{Recorder, Written};

/// What every recipe begins with; the last byte is the format's version.
const MAGIC: [u8; 8] = *b"mica-rc\x01";

const END: u8 = 0;
const LITERAL: u8 = 1;
const ZEROS: u8 = 2;
const IMAGE: u8 = 3;

/// 2^19 bytes: what zstd's fastest levels use, and the most that a reader grants.
const WINDOW_LOG: u32 = 19;
