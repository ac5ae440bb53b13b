#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod command;
mod expiry;
mod image;
mod inherit;
mod machine;
mod mount;
pub mod network;
pub mod options;
mod os_text;
mod root;
mod spec;
pub mod words;

pub use command::{Command, CommandError, EnvChange, Overrides};
pub use expiry::Expiry;
pub use image::ImageName;
pub use machine::{BackendChoice, DEFAULT_MEMORY_MIB, DiskRate, Machine, SizeError};
pub use mount::{
    BindSource, ImageSource, Mount, MountError, MountSource, Setup, UsedVolume, VolumeSource,
};
pub use network::{Network, UserNetwork};
pub use root::{DEFAULT_DISK_SIZE, Root, Transport, Upper};
pub use spec::Spec;
