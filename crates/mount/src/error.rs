//! Why a filesystem is not mounted or served.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why a filesystem is not mounted or served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The place is not a directory, or can't be reached.
    #[error("{}: {source}", path.display())]
    Place {
        /// The place.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel has no FUSE, or this user may not use it.
    #[error("opening /dev/fuse: {0}")]
    Device(Errno),
    /// The kernel refuses to mount.
    #[error("mounting on {}: {source}", path.display())]
    Mount {
        /// The place.
        path: PathBuf,
        /// The system's error.
        source: Errno,
    },
    /// The helper refuses to mount.
    #[error("mounting on {}: {message}", path.display())]
    Helper {
        /// The place.
        path: PathBuf,
        /// Its stderr.
        message: String,
    },
    /// Only root may mount, and the helper for others is not installed.
    #[error("mounting on {} needs root, or fusermount3", .0.display())]
    NoHelper(PathBuf),
    /// The kernel refuses a user namespace.
    #[error("entering a user namespace: {0}")]
    Namespace(io::Error),
    /// The kernel's requests can't be read.
    #[error("reading the kernel's requests: {0}")]
    Serving(Errno),
}
