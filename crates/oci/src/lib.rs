//! Types that the image store and the registry client share.
//!
//! * [`Reference`] is an image's name, [`Digest`] a SHA-256, [`Descriptor`] a blob as a manifest
//!   names it; [`Platform`] is what an image is for, and [`Trim`] says what a view of one is without.
//! * [`ImageConfiguration`] is an image's platform, layers and history, and with [`Config`] how its programs run.
//! * [`json`] reads documents as all other programs that write and read them do.
//! * [`Progress`] receives the events of a transfer, in either direction.
//!
//! This crate does no input or output.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod config;
mod descriptor;
mod digest;
pub mod json;
mod platform;
pub mod progress;
pub mod reference;
mod trim;

pub use config::{Config, History, ImageConfiguration, RootFs};
pub use descriptor::Descriptor;
pub use digest::{Digest, Hasher, HashingWriter, ParseError};
pub use platform::Platform;
pub use progress::Progress;
pub use reference::Reference;
pub use trim::{Trim, TrimError};

/// Largest manifest, index or image configuration, in bytes: what registries accept.
pub const MAX_DOCUMENT: u64 = 4 << 20;

/// Returns foreign text with its control characters, which a terminal would obey, replaced by
/// spaces, and at most 300 characters of it.
#[must_use]
pub fn printable(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let short: String = clean.take(300).collect();
    short.trim().to_owned()
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
