#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro)] // see clippy.toml

pub mod bars;
mod causes;
mod end;
pub mod failure;
pub mod host_memory;
pub mod limits;
pub mod log;
pub mod notes;
pub mod output;
pub mod packing;
pub mod progress;
pub mod report;
pub mod serving;
pub mod settings;
pub mod umask;
pub mod usage;
pub mod visible;

pub use end::end;
