//! An owner, with a guest and clients that the tests play.

mod attach;
mod clients;
mod expiry;
mod guests;
mod support;
