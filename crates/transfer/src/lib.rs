//! Moves images between registries and the store.
//!
//! This crate connects the two: `micabox-registry` doesn't know the store, `micabox-image` doesn't
//! know the network. A program that makes images from archives only needs neither this crate nor
//! the asynchronous runtime below it.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod archives;
mod attached;
mod blocking;
mod cancellation;
mod lazy;
mod login;
mod lookaside;
mod order;
mod pull;
mod push;
pub mod settings;
pub mod snapshot;
mod traced;
mod trust;
mod verify;

pub use archives::bring_archives_blocking;
pub use attached::{Attached, attached_to, fetch_attached, signatures_name};
pub use cancellation::Cancellation;
pub use lazy::{LazyLayers, complete_blocking};
pub use login::check_login_blocking;
pub use lookaside::BesideError;
pub use micabox_registry::{
    Credential, Credentials, LoginError, LoginFile, PSEUDONYM, Reason, RegistryError, Unauthorized,
};
pub use order::{
    Artifact, NOTHING, push_order_blocking, push_start_order_blocking, start_order_artifact,
};
pub use pull::{PullError, PullOptions, pull, pull_blocking};
pub use push::{PushError, PushOptions, Pushed, PushedErofs, push, push_blocking};
pub use settings::{PullPolicy, Settings};
pub use verify::{Verified, VerifyError, verify_conversion, verify_conversion_blocking};

/// Makes a runtime for callers outside of any. Its threads only decrypt and move bytes: conversions run on others.
fn threads(name: &str) -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(name)
        .enable_all()
        .build()
}
