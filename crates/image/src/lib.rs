//! OCI images as EROFS layers: references, registries, archives, conversion, the store.

#![forbid(unsafe_code)]

pub mod archive;
pub mod config;
pub mod convert;
pub mod credentials;
pub mod digest;
pub mod export;
pub mod extend;
#[doc(hidden)]
pub mod fuzzing;
pub mod identity;
pub mod limits;
pub mod load;
pub mod manifest;
pub mod platform;
pub mod progress;
pub mod pull;
pub mod push;
mod recipe;
pub mod reference;
pub mod registry;
pub mod save;
pub mod store;

pub use config::Settings;
pub use convert::WORKER;
pub use credentials::Credentials;
pub use digest::Digest;
pub use export::Compression;
pub use extend::{Changes, ExtendError, extend};
pub use limits::Limits;
pub use load::{LoadError, LoadOptions, load};
pub use platform::Platform;
pub use progress::Progress;
pub use pull::{PullError, PullOptions, pull, pull_blocking};
pub use push::{PushError, PushOptions, Pushed, push, push_blocking};
pub use reference::Reference;
pub use save::{SaveError, SaveOptions, save};
pub use store::Store;
