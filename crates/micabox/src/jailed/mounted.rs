//! The server of a tree that is mounted on this machine.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use micabox_jail::Call;
use micabox_mount::{Cache, Filesystem, Limits, Tree, below};
use micabox_overlay::lower::{Lower, LowerKind};
use micabox_overlay::view;
use serde::{Deserialize, Serialize};

use super::{Fault, Files};
use crate::mounted::answer;

/// Serves a tree until it is unmounted. Files: a pipe that gets a byte once the tree is open; a listening
/// socket, if there can be changes; the kernel's channels; the disk with a sandbox's changes, if there is
/// one; an image's metadata and layers, or a filesystem.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Serve {
    pub(crate) channels: u32,
    pub(crate) has_disk: bool,
    pub(crate) lower: LowerKind,
    pub(crate) is_writable: bool,
    pub(crate) is_for_one_user: bool,
    /// Bytes and inodes that changes may take.
    pub(crate) room: (u64, u64),
}

impl Call for Serve {
    const KIND: &'static str = "mounted";
    const CALLS: &'static [libc::c_long] = &[libc::SYS_accept4];
    type Reply = ();
    type Error = Fault;

    fn run(self, files: Vec<OwnedFd>) -> Result<(), Fault> {
        let mut files = Files::new(files);
        let mut ready = files.next()?;
        let listener = if self.is_writable {
            Some(UnixListener::from(OwnedFd::from(files.next()?)))
        } else {
            None
        };
        let channels = (0..self.channels).map(|_| files.next().map(OwnedFd::from));
        let channels = channels.collect::<Result<Vec<_>, _>>()?;
        let disk = if self.has_disk {
            Some(files.next()?)
        } else {
            None
        };
        let below = Lower::open(self.lower, files.rest());
        let below = Arc::new(below.map_err(|error| Fault::Below(error.to_string()))?);
        // Said now, and not by the first program that looks.
        below
            .root()
            .map_err(|error| Fault::Below(error.to_string()))?;
        let tree = match disk {
            None if self.is_writable => below::overlaid(Arc::clone(&below)),
            None => below::alone(Arc::clone(&below)),
            Some(disk) => {
                let upper = view::open(disk).map_err(Fault::disk)?;
                below::merged(Box::new(upper), Arc::clone(&below)).map_err(Fault::disk)?
            }
        };
        let limits = Limits {
            bytes: self.room.0,
            inodes: self.room.1,
        };
        let filesystem = Filesystem::over(limits, tree).map_err(Fault::disk)?;
        // Until the process ends.
        let filesystem: &'static Filesystem = Box::leak(Box::new(filesystem));
        let tree: &'static Tree<'_> = Box::leak(Box::new(
            Tree::new(filesystem, Cache::Always)
                .for_one_user(self.is_for_one_user)
                .read_only(!self.is_writable),
        ));
        if let Some(listener) = listener {
            // Changes of what is merged already have no base that an image could be made of.
            let below = (!self.has_disk).then(|| Arc::clone(&below));
            let thread = std::thread::Builder::new().name("changes".into());
            let answer = move || answer(&listener, tree, below.as_ref());
            thread.spawn(answer).map_err(Fault::output)?;
        }
        ready.write_all(&[1]).map_err(Fault::output)?;
        drop(ready);
        tree.serve(channels).map_err(Fault::output)
    }
}
