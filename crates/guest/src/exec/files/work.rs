//! The part of an operation that needs its streams.

use std::os::fd::OwnedFd;

use micabox_tree::{Root, Source};
use micabox_wire::files::FileReply;

use super::failed::Failed;
use super::watch::Watcher;

/// What is left to do once an operation has begun.
pub enum Work {
    /// Nothing.
    Done,
    /// Send a reply.
    Reply(FileReply),
    /// Write a file's bytes to stdout.
    Read(OwnedFd, Option<u64>),
    /// Write stdin to a file.
    Write(OwnedFd),
    /// Write the files on stdin, which this opens.
    WriteMany(Open),
    /// Remove the directory of this name in a directory.
    Remove(OwnedFd, Vec<u8>),
    /// List a directory.
    List(OwnedFd, u32),
    /// Write an archive of what is at this path to stdout, below this name.
    Pack(Source, Vec<u8>, Vec<u8>),
    /// Unpack the archive on stdin below this path.
    Unpack(Root, Vec<u8>),
    /// Report changes.
    Watch(Box<Watcher>),
}

/// Opens the file of a path, to write to it.
pub type Open = Box<dyn Fn(&[u8]) -> Result<OwnedFd, Failed>>;
