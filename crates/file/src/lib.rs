//! Types that filesystems and archives share: a file's kind and attributes, points in time, segments,
//! access control lists.
//!
//! EROFS, ext4 and archives each encode these differently; their meaning is defined here.

#![forbid(unsafe_code)]
#![no_std]

#[cfg(feature = "std")]
extern crate std;

#[cfg(feature = "std")]
pub mod acl;
mod kind;
pub mod narrow;
mod segment;
mod stat;
mod time;

pub use kind::FileKind;
pub use segment::Segment;
pub use stat::Stat;
pub use time::Timestamp;
