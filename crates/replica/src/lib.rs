//! A registry over a store: images of this machine for others, read-only.
//!
//! It answers what clients need to pull (the [distribution specification][spec], its "pull" and "content discovery").
//! The store keeps no blobs: a layer's archive is rebuilt from its EROFS image and its recipe while it is sent, byte
//! for byte, and not compressed. So an image has the manifest of the store if its layers were not compressed there
//! either, and otherwise one that names the same config and the archives themselves, whose digests are the diff IDs.
//!
//! Data flows one way: [`serve`] accepts connections, [`access`] lets a request in, [`path`] says what it asks for,
//! [`name`] which image that is, [`catalog`] finds it in the store, [`upstream`] pulls what is not there, [`blob`] sends
//! an archive.
//!
//! [spec]: https://github.com/opencontainers/distribution-spec

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod access;
mod answer;
mod blob;
mod catalog;
#[doc(hidden)]
pub mod fuzzing;
mod list;
mod name;
mod path;
mod problem;
mod serve;
mod tls;
mod upstream;

pub use access::{Access, AccessError};
pub use serve::{Replica, ServeError, serve};
pub use tls::{Tls, TlsError};
pub use upstream::Upstream;

/// Takes lines for the server's owner.
pub type Report = std::sync::Arc<dyn Fn(&str) + Send + Sync>;
