//! The ext4 format in safe Rust: make, read, write, journal, resize, check.
//!
//! ext4 without a kernel: no mount, no root, no `unsafe`. The core needs only `alloc` and a
//! [`BlockDevice`]; with the feature `std`, which is on by default, a [`std::fs::File`] is one.
//!
//! * [`Ext4`] is an open filesystem: all operations of POSIX on files, names and attributes, by
//!   inode number, with [`Ext4::resolve`] for paths. Changes stay in memory until [`Ext4::sync`]
//!   makes them durable through the same journal that Linux uses.
//! * [`format`] has the structures on disk.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod cache;
pub mod check;
pub mod device;
mod engine;
mod error;
pub mod format;
pub mod mkfs;
mod placement;
pub mod resize;

pub use device::{BlockDevice, DeviceError};
pub use engine::{
    DirEntry, Ext4, Fallocate, Ino, Options, Owner, ROOT, Rename, SetAttributes, SetXattr, Stat,
    Statistics,
};
pub use error::{Errno, Error, Place, Result};
pub use micabox_file::{FileKind, Segment, Timestamp};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
