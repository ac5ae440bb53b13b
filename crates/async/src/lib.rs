#![doc = include_str!("../README.md")]
//!
//! # How things end
//!
//! | dropped | |
//! |---|---|
//! | the future of [`Sandbox::create`] | the start is cancelled; nothing of it is left |
//! | the last clone of a [`Sandbox`] that this program made | it is killed, by a thread; [`Sandbox::kill`] and [`Sandbox::stop`] wait for the end |
//! | the future of [`Commands::run`] or [`Commands::spawn`] | the command is killed |
//! | a [`Process`], its streams and [handles](Handle) | the command is killed, unless it is [detached](micabox::ExecOptions::detach) or was [left](Process::leave) |
//! | a [`Process`] from [`Commands::attach`] | the command continues |
//! | a [`Process`] from [`Commands::connect_to`] | the connection ends |
//! | a stream of a [`Process`] that is kept | stdin ends; of an output, the rest is discarded |
//! | the future of an operation on [`Files`], or a stream of one | the operation ends, done or not |
//! | the future of anything that works on disks ([`Sandbox::snapshot`]) | it is done all the same |
//! | the runtime, or the program | as if all of these were dropped |

#![forbid(unsafe_code)]

mod blocking;
mod command;
mod commands;
mod files;
mod link;
mod pieces;
mod process;
mod sandbox;
mod streams;

pub use blocking::blocking;
pub use commands::Commands;
pub use files::{Entries, FileReader, FileWriter, Files, FilesWriter, Replies, Watch};
pub use process::{Handle, Process};
pub use sandbox::Sandbox;
pub use streams::{Output, Stdin};

pub use micabox::{
    Builder, Command, DirectoryEntry, Error, ErrorKind, ExecOptions, ExitStatus, FileEvent,
    Finished, GuestProcess, NotedCommand, Sandboxes, Stdio, TtySize, WriteOptions,
};
