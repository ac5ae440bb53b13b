//! OCI images as EROFS layers: conversion, archives in and out, the store. Synchronous, and
//! without a network.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod append_layer;
mod archive;
pub mod convert;
pub mod export;
#[doc(hidden)]
pub mod fuzzing;
mod hide;
pub mod identity;
mod limits;
mod load;
pub mod manifest;
mod recipe;
mod save;
mod settings;
pub mod store;

pub use append_layer::{AppendLayerError, DockerConfig, ImageEdit, append_layer};
pub use archive::decompressed;
pub use convert::WORKER;
pub use export::Compression;
pub use hide::Hidden;
pub use limits::{ENTRY_MEMORY, Limit, Limits};
pub use load::{LoadError, LoadOptions, load};
pub use micabox_oci::{
    Config, Descriptor, Digest, ImageConfiguration, Platform, Progress, Reference, Trim, TrimError,
    json, progress,
};
pub use save::{ArchiveFormat, SaveError, SaveOptions, UnknownFormat, save};
pub use settings::{ParallelLayers, Settings};
pub use store::Store;

use micabox_oci::printable;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
