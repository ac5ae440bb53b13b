//! An OCI layout, or an unpacked `docker save` archive, as a directory.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::{Member, Problem};
use crate::manifest::printable;

/// A directory whose files are opened relative to it and without following links, so that
/// none of them is anywhere else.
#[derive(Debug)]
pub(super) struct Directory {
    root: File,
}

impl Directory {
    pub(super) fn new(root: File) -> Self {
        Self { root }
    }

    pub(super) fn member(&self, name: &str) -> Result<Option<Member>, Problem> {
        let not_a_file = || Problem::NotAFile {
            name: printable(name),
        };
        let read = |source: io::Error| Problem::Read {
            name: printable(name),
            source,
        };
        if name.starts_with('/') || name.split('/').any(|part| part == "..") {
            return Err(not_a_file());
        }
        let (parents, file) = name.rsplit_once('/').unwrap_or(("", name));
        let mut at: Option<OwnedFd> = None;
        let open = |at: &Option<OwnedFd>, part: &str, flags: OFlags| {
            let from = at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
            // Non-blocking, or a FIFO would keep us waiting for a writer.
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
            match openat(from, part, OFlags::RDONLY | flags, Mode::empty()) {
                Ok(opened) => Ok(Some(opened)),
                Err(Errno::NOENT) => Ok(None),
                Err(Errno::LOOP | Errno::NOTDIR) => Err(not_a_file()),
                Err(error) => Err(read(error.into())),
            }
        };
        for part in parents.split('/').filter(|part| !matches!(*part, "" | ".")) {
            match open(&at, part, OFlags::DIRECTORY)? {
                Some(opened) => at = Some(opened),
                None => return Ok(None),
            }
        }
        let Some(opened) = open(&at, file, OFlags::empty())? else {
            return Ok(None);
        };
        let file = File::from(opened);
        let metadata = file.metadata().map_err(read)?;
        if !metadata.is_file() {
            return Err(not_a_file());
        }
        Ok(Some(Member {
            size: metadata.len(),
            contents: Box::new(file.take(metadata.len())),
        }))
    }
}
