//! The words that the store of images and the registries' client share.
//!
//! * [`Reference`] is an image's name, [`Digest`] the SHA-256 of something, [`Descriptor`] a blob
//!   as a manifest names it.
//! * [`Progress`] is told how a transfer goes on, whatever moves the layers.
//!
//! Nothing here does any input or output.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod descriptor;
mod digest;
pub mod progress;
pub mod reference;

pub use descriptor::Descriptor;
pub use digest::{Digest, Hasher, HashingWriter, ParseError};
pub use progress::Progress;
pub use reference::Reference;

/// Largest manifest, index or image configuration, in bytes: what registries accept.
pub const MAX_DOCUMENT: u64 = 4 << 20;

/// Foreign text without what a terminal would obey, and not too much of it.
#[must_use]
pub fn printable(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let short: String = clean.take(300).collect();
    short.trim().to_owned()
}
