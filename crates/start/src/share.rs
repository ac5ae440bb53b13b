//! Folders and files of the host that are mounted in a sandbox.

use std::fs::File;
use std::io;
use std::sync::Arc;

use micabox_error::Error;
use micabox_spec::{BindSource, Setup};
use rustix::fs::{Mode, OFlags};

/// The name by which a guest finds a file that is shared, in a share of its own.
pub const ONLY: &str = "file";

/// A folder or file of the host that is open, for a mount.
#[derive(Clone, Debug)]
pub struct Share {
    /// The mount's place among all mounts.
    pub mount: usize,
    /// The share's place among all shares.
    index: usize,
    pub source: Arc<File>,
    pub is_file: bool,
    pub read_only: bool,
    pub cached: bool,
    pub with_mounts: bool,
}

impl Share {
    /// Returns the name of the share's device.
    pub fn tag(&self) -> String {
        tag(self.index)
    }
}

/// Returns the name of the device of a share.
pub fn tag(index: usize) -> String {
    format!("share{index}")
}

/// Opens the folders and files of the host, as places.
pub fn open(setup: &Setup) -> Result<Vec<Share>, Error> {
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
