//! The part of OpenPGP that signs images: keys of version 4 with subkeys, and signed messages ([RFC 9580]).
//!
//! GnuPG decides about the same keys and messages in the tests. `ring` does all cryptography.
//!
//! [RFC 9580]: https://www.rfc-editor.org/rfc/rfc9580

mod armor;
mod certificate;
mod key;
mod message;
mod packet;
mod signature;

pub(crate) use certificate::{Certificate, Signed};
pub(crate) use message::{LARGEST, Message};
