#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod answer;
mod channel;
pub mod message;
mod offer;
pub mod opcode;
mod ring;
mod session;
mod written;

pub use answer::Answer;
pub use channel::Channel;
pub use offer::{Offer, flag, known};
pub use session::{Server, serve};
