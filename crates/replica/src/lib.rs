//! A registry over a store: images of this machine for others, read-only.
//!
//! It answers what clients need to pull (the [distribution specification][spec], its "pull" and "content discovery").
//! Unless it was told to, the store keeps no blobs: a layer's archive is rebuilt from its EROFS image and its recipe
//! while it is sent, byte for byte, and not compressed. So an image has the manifest of the store if its layers were not
//! compressed there either, and otherwise one that names the same config and the archives themselves, whose digests are
//! the diff IDs. An image whose blobs were kept is served as it came.
//!
//! An image is also served as EROFS images, whose chunks are compressed again while they are sent: as `mica push --erofs`
//! would send it, or as it came.
//!
//! Data flows one way: [`serve`] accepts connections, [`access`] lets a request in, [`path`] says what it asks for,
//! [`name`] which image that is, [`catalog`] finds it in the store, [`kept`] as it came, [`converted`] as EROFS images,
//! [`upstream`] pulls what is not there, [`attached`] has what is attached to images, [`blob`] sends a layer.
//!
//! [spec]: https://github.com/opencontainers/distribution-spec

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod access;
mod answer;
mod attached;
mod blob;
mod catalog;
mod converted;
#[doc(hidden)]
pub mod fuzzing;
mod judged;
mod kept;
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
