//! The server of a tree that is mounted on this machine.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use micabox_jail::Call;
use micabox_mount::{Cache, Filesystem, Limits, Tree, below};
use micabox_overlay::lower::{Lower, LowerKind};
use micabox_overlay::view;
use micabox_parsers::{Fault, Files, Served};
use serde::{Deserialize, Serialize};

use super::Changed;

/// Serves a tree until it is unmounted. Files: a pipe that gets a byte once the tree is open; a listening
/// socket, if there can be changes; the kernel's channels; the disk with a sandbox's changes, if there is
/// one; an image's metadata and layers, or a filesystem, or a socket that leads to the server of a folder.
#[derive(Debug, Serialize, Deserialize)]
pub struct Serve {
    /// Number of the kernel's channels.
    pub channels: u32,
    /// Whether there is a disk with a sandbox's changes.
    pub has_disk: bool,
    /// What the tree is read from.
    pub lower: Below,
    /// Whether there can be changes.
    pub is_writable: bool,
    /// Whether only the user who mounts it has access.
    pub is_for_one_user: bool,
    /// What is shown of it.
    pub shown: Shown,
    /// Bytes and inodes that changes may take.
    pub room: (u64, u64),
}

/// What a tree is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Below {
    /// A filesystem in files.
    Filesystem(LowerKind),
    /// A directory of the host.
    Folder,
}

/// What is shown of a tree that can't be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shown {
    /// All that is there.
    AsItIs,
    /// What containers may see of it.
    BelowContainers {
        /// Whether all files are root's.
        has_one_owner: bool,
    },
}

impl Call for Serve {
    const KIND: &'static str = "mounted";
    const CALLS: &'static [libc::c_long] = &[libc::SYS_accept4];
    type Reply = ();
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> Result<(), Fault> {
        let mut files = Files::new(files);
        let mut ready = files.take()?;
        let listener = if self.is_writable {
            Some(UnixListener::from(OwnedFd::from(files.take()?)))
        } else {
            None
        };
        let channels = (0..self.channels).map(|_| files.take().map(OwnedFd::from));
        let channels = channels.collect::<Result<Vec<_>, _>>()?;
        let disk = if self.has_disk {
            Some(files.take()?)
        } else {
            None
        };
        let below = match self.lower {
            Below::Filesystem(kind) => {
                Lower::open(kind, files.rest()).map_err(|error| Fault::Below(error.to_string()))?
            }
            Below::Folder => {
                let served = Served::whole(files.take()?);
                Lower::folder(Box::new(served.map_err(Fault::disk)?))
            }
        };
        let below = Arc::new(below);
        // Reported now, and not to the first program that reads the tree.
        below
            .root()
            .and_then(|_| below.check_files())
            .map_err(|error| Fault::Below(error.to_string()))?;
        let merged = match disk {
            Some(disk) => {
                let upper = view::open(disk).map_err(Fault::disk)?;
                let merged = below::merged(Box::new(upper), Arc::clone(&below));
                Some(merged.map_err(Fault::disk)?)
            }
            None => None,
        };
        let tree: Arc<dyn micabox_mount::Lower> = match &merged {
            Some(merged) => Arc::clone(merged) as _,
            None if self.is_writable && self.lower != Below::Folder => {
                below::overlaid(Arc::clone(&below))
            }
            None => match self.shown {
                Shown::AsItIs => below::alone(Arc::clone(&below)),
                Shown::BelowContainers { has_one_owner } => {
                    below::below_containers(Arc::clone(&below), has_one_owner)
                }
            },
        };
        let limits = Limits {
            bytes: self.room.0,
            inodes: self.room.1,
        };
        let filesystem = Filesystem::over(limits, tree).map_err(Fault::disk)?;
        let is_image = self.lower == Below::Filesystem(LowerKind::Erofs);
        let has_births = !is_image || self.is_writable || merged.is_some();
        // Until the process ends.
        let filesystem: &'static Filesystem = Box::leak(Box::new(filesystem));
        let tree: &'static Tree<'_> = Box::leak(Box::new(
            Tree::new(filesystem, Cache::Always)
                .for_one_user(self.is_for_one_user)
                .read_only(!self.is_writable)
                .with_births(has_births),
        ));
        if let Some(listener) = listener {
            let changed = Changed {
                tree,
                merged,
                below,
            };
            let thread = std::thread::Builder::new().name("changes".into());
            let answer = move || changed.answer(&listener);
            thread.spawn(answer).map_err(Fault::output)?;
        }
        ready.write_all(&[1]).map_err(Fault::output)?;
        drop(ready);
        tree.serve(channels).map_err(Fault::output)
    }
}
