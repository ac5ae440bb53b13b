#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bytes;
mod copy;
mod disk;
mod error;
pub mod filesystem;
mod flat;
pub mod partition;
mod qcow2;
mod vmdk;

pub use bytes::ReadAt;
pub use copy::{WriteAt, copy};
pub use disk::{Disk, Format};
pub use error::Error;
pub use flat::flat_vmdk;

/// Bytes of a sector.
pub const SECTOR: u64 = 512;

/// Largest disk that is read, in bytes.
pub const LARGEST: u64 = 64 << 40;

type Result<T> = std::result::Result<T, Error>;
