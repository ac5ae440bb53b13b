//! Folders of the host in a machine: a FUSE server over one folder, in a jailed process of its own.
//!
//! A machine's kernel mounts a virtio-fs device, whose requests are FUSE's. They reach the server in
//! one of two ways ([`Transport`]): as frames on a stream, from a monitor that copies them out of its
//! guest's memory; or from queues in memory that a monitor shares with the server (vhost-user).
//!
//! The server ([`start`]) is this program executed again. Its root directory is the folder, it has
//! the rights of the user who runs it and no more, and it resolves nothing but single names relative
//! to open directories. Files belong to that user outside. Inside they belong to whom the guest
//! gave them, which an extended attribute records (`owner.rs`).
//!
//! A share may be the upper layer of the guest's overlay ([`Settings::upper`]). A [`Client`] reads it as
//! the guest does, for programs on the host. Other folders are shown to these as they are
//! ([`Settings::as_it_is`]).

#![forbid(unsafe_code)]

mod attribute;
mod client;
#[doc(hidden)]
pub mod fuzzing;
mod handles;
mod nodes;
mod owner;
mod process;
mod queues;
mod server;
mod settled;
mod shown;
mod stream;
mod versions;
mod watches;

pub use client::{Client, ROOT};
pub use micabox_fuse::message::{HEADER, LARGEST};
pub use process::{Error, KIND, Process, Settings, Transport, start};
