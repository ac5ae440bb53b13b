#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod bundle;
mod file;
#[doc(hidden)]
pub mod fuzzing;
mod identity;
mod key;
mod keyless;
mod lookaside;
mod openpgp;
mod payload;
mod policy;
mod referrers;
mod signature;
mod simple;
mod strict;
mod verify;

pub use bundle::BUNDLE_TYPE;
pub use file::PolicyError;
pub use lookaside::{Lookaside, LookasideError};
pub use policy::{Policy, Scope};
pub use referrers::{bundle_of, bundles_of, referrers_tag};
pub use signature::{MEDIA_TYPE, Signature, SignatureError, attached_tag, signatures_of};
pub use simple::LARGEST_SIGNATURE;
pub use verify::{Needs, Refusal, Refused, Signatures, Signer, Subject};
