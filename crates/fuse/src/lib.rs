#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod channel;
pub mod message;
mod offer;
mod session;

pub use channel::{Answer, Channel};
pub use offer::{Offer, flag};
pub use session::{Server, serve};
