//! Folders and files of the host that are mounted in a sandbox.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::{BindSource, Error, Setup};

/// The name by which a guest finds a file that is shared, in a share of its own.
pub(crate) const ONLY: &str = "file";

/// A folder or file of the host that is open, for a mount.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// The mount's place among all mounts.
    pub(crate) mount: usize,
    /// The share's place among all shares.
    index: usize,
    pub(crate) source: Arc<File>,
    pub(crate) is_file: bool,
    pub(crate) read_only: bool,
    pub(crate) cached: bool,
    pub(crate) with_mounts: bool,
}

impl Share {
    /// Returns the name of the share's device.
    pub(crate) fn tag(&self) -> String {
        tag(self.index)
    }
}

/// Returns the name of the device of a share.
pub(crate) fn tag(index: usize) -> String {
    format!("share{index}")
}

/// Opens the folders and files of the host, as places.
pub(crate) fn open(setup: &Setup) -> Result<Vec<Share>, Error> {
    let open = |(index, (mount, bind, read_only)): (usize, (usize, &BindSource, bool))| {
        let failed = |source: io::Error| Error::Share {
            path: (&bind.source).into(),
            source,
        };
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = rustix::fs::open(&bind.source, flags, Mode::empty());
        let file = File::from(file.map_err(|error| failed(error.into()))?);
        let kind = file.metadata().map_err(failed)?.file_type();
        if !kind.is_dir() && !kind.is_file() {
            let why = "it is neither a directory nor a regular file";
            return Err(failed(io::Error::other(why)));
        }
        Ok(Share {
            mount,
            index,
            source: Arc::new(file),
            is_file: kind.is_file(),
            read_only,
            cached: bind.cached,
            with_mounts: !bind.alone,
        })
    };
    setup.binds().enumerate().map(open).collect()
}
