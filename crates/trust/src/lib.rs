#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod file;
#[doc(hidden)]
pub mod fuzzing;
mod identity;
mod key;
mod keyless;
mod payload;
mod policy;
mod signature;
mod strict;
mod verify;

pub use file::PolicyError;
pub use policy::{Policy, Scope};
pub use signature::{MEDIA_TYPE, Signature, SignatureError, attached_tag, signatures_of};
pub use verify::{Refusal, Refused, Signer, Subject};
