#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod chain;
pub mod clock;
mod hex;
pub mod lock;
pub mod locked;
mod piece;
pub mod publish;
mod random;

pub use chain::chain;
pub use hex::hex;
pub use lock::lock;
pub use locked::Locked;
pub use piece::piece;
pub use publish::publish;
pub use random::random;
