//! Reads an OCI layout, or an unpacked `docker save` archive, from a directory.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::{Member, Problem};
use crate::printable;

/// How often a path is tried while files are renamed elsewhere.
const ATTEMPTS: u32 = 1000;

/// A directory whose files are opened with the kernel's rule that a path stays beneath it
/// (`RESOLVE_BENEATH`): a symbolic link may lead from one file of it to another, as some tools
/// make layouts whose blobs are shared, but not outside.
///
/// A link that leads outside could disclose files of this machine that the directory's author
/// can't read: not as blobs, whose digests are checked, but in an error that quotes a document.
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
        // Non-blocking, or a FIFO would make us wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let opened = match self.open(name, flags, beneath) {
            Ok(opened) => opened,
            Err(Errno::NOENT) if self.is_link(name) => return Err(not_a_file()),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::XDEV) => {
                return Err(Problem::LeadsOut {
                    name: printable(name),
                });
            }
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(not_a_file()),
            Err(error) => return Err(read(error.into())),
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

    /// Opens a path. The kernel gives up on a `..` while a file is renamed anywhere on the machine,
    /// and says EAGAIN (openat2(2)).
    fn open(
        &self,
        name: &str,
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> rustix::io::Result<OwnedFd> {
        let mut attempts = ATTEMPTS;
        loop {
            match openat2(&self.root, name, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN) if attempts > 0 => attempts -= 1,
                opened => return opened,
            }
        }
    }

    /// Returns whether there is a symbolic link with this name, whatever its target.
    fn is_link(&self, name: &str) -> bool {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.open(name, flags, ResolveFlags::BENEATH).is_ok()
    }
}
