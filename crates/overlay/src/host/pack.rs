//! Packs host files into an archive.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use micabox_tree::{Error, Root, Source};
use rustix::fs::{CWD, Mode, OFlags};

/// How to treat devices, FIFOs and sockets. Archives can't hold sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Devices and FIFOs are packed; sockets are left out.
    Packed,
    /// Any of them is an error.
    Refused,
}

/// Options of packing.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    /// Whether a symbolic link at the top is followed.
    pub follow: bool,
    /// Whether owners and access control lists are kept; otherwise root owns everything.
    pub owners: bool,
    /// How to treat devices, FIFOs and sockets.
    pub special: Special,
}

/// Maximum number of sockets that are named.
const SOCKETS: usize = 100;

impl Packing {
    /// Writes the files at `from` as an archive, with the members below `name`, or at the top if
    /// `name` is empty. Holes, times and extended attributes are kept, but for those that mean
    /// something to this host only. Returns the first hundred sockets, which are left out.
    ///
    /// # Errors
    /// Errors of the host's files, with their paths, and of `to`.
    pub fn pack(self, from: &Path, name: &[u8], to: impl Write) -> io::Result<Vec<PathBuf>> {
        let here = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let here = rustix::fs::openat(CWD, ".", here, Mode::empty())?;
        let source = Source::open(&Root::unbound(here), bytes(from), self.follow)?;
        let packing = micabox_tree::Packing {
            owners: self.owners,
            xattrs: if self.owners { is_kept } else { is_common },
            only_plain: self.special == Special::Refused,
            devices: None,
        };
        // A member's path on the host.
        let host = |path: &[u8]| {
            let below = path.strip_prefix(name).unwrap_or(path);
            let below = below.strip_prefix(b"/").unwrap_or(below);
            match below {
                [] => from.to_owned(),
                below => from.join(OsStr::from_bytes(below)),
            }
        };
        let mut sockets = Vec::new();
        let packed = source.pack(name, packing, to, &mut |socket| {
            if sockets.len() < SOCKETS {
                sockets.push(host(socket.0));
            }
        });
        match packed {
            Ok(()) => Ok(sockets),
            Err(Error::Output(error)) => Err(error),
            Err(Error::File { path, source }) => {
                let message = format!("{}: {source}", host(&path).display());
                Err(io::Error::new(source.kind(), message))
            }
            Err(error @ Error::Archive(_)) => Err(io::Error::other(error)),
        }
    }
}

/// Whether an extended attribute means the same in a sandbox, with any owner of the file.
fn is_common(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == b"security.capability"
}

/// Whether an extended attribute means the same in a sandbox.
fn is_kept(name: &[u8]) -> bool {
    let is_overlays = name.starts_with(b"trusted.overlay.");
    is_common(name)
        || name.starts_with(b"system.posix_acl_")
        || name.starts_with(b"trusted.") && !is_overlays
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
