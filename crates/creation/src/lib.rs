#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro)] // see clippy.toml

mod check;
pub mod copies;
pub mod dockers;
pub mod environment;
#[cfg(test)]
mod flags;
mod held;
mod here;
mod image;
mod kernel;
pub mod labels;
mod late;
mod lazy;
mod make;
mod mounts;
mod packed;
mod patches;
mod prepare;
mod pulls;
mod shell_words;
mod snapshots;
mod wanted;

pub use check::check;
pub use held::Held;
pub use image::find_image;
pub use kernel::{get_ready, report_what_is_shared};
pub use lazy::Unread;
pub use make::{create, create_with, fork, fork_with};
pub use prepare::{Begin, First, Preparation};
pub use pulls::{Bound, Pulls};
pub use snapshots::{is_of_snapshot, pull_snapshot, push_snapshot, push_snapshot_order};
pub use wanted::{Create, Taken, Wanted, read, wanted};
