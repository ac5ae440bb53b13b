//! Rebuilds the archive that a stored layer was made from, byte for byte.
//!
//! The filesystem image has every file's contents, including those of replaced files. The rest of
//! the archive (headers, padding, what follows the end) is in a recipe beside it, together with
//! the position of each body in the image. The idea is that of tar-split, which Docker and Podman
//! keep beside unpacked layers.
//!
//! A recipe is one zstd stream. It contains [`MAGIC`] and then steps, each a byte for its kind,
//! and numbers as LEB128:
//!
//! | byte | numbers | what comes next in the archive |
//! |---|---|---|
//! | 0 | | nothing: the end |
//! | 1 | length | as many bytes, which follow here |
//! | 2 | length | as many zeros |
//! | 3 | length, distance | as many bytes of the image |
//!
//! `distance` (zigzag, so that small numbers of either sign are short) is the offset from the
//! first block boundary after the bytes of the last such step to the first byte of this one:
//! bodies are in the order of the archive, so it is almost always 0. Both sides work with fixed
//! buffers, whatever the layer's size.

mod read;
mod write;

pub(crate) use read::Recipe;
pub(crate) use write::{Recorder, Written};

/// The first bytes of every recipe; the last byte is the format's version.
const MAGIC: [u8; 8] = *b"mica-rc\x01";

const END: u8 = 0;
const LITERAL: u8 = 1;
const ZEROS: u8 = 2;
const IMAGE: u8 = 3;

/// 2^19 bytes: the window of zstd's fastest levels, and the most that a reader allows.
const WINDOW_LOG: u32 = 19;
