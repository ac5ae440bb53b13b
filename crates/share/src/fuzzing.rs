//! A folder's server in this process, for `fuzz/`.

use std::os::fd::OwnedFd;

use crate::server::{Manner, Most, Server};
use crate::versions::{Slot, Table};

/// The server of a folder, without a jail.
#[derive(Debug)]
pub struct Folder(Server);

/// A guest without a table of versions.
struct NoTable;

impl Table for NoTable {
    fn write(&self, _: u64, _: u64, _: Option<&[Slot]>) {}
}

impl Folder {
    /// Serves a directory. The process's working directory must be `/proc/self/fd`.
    pub fn new(root: OwnedFd, is_read_only: bool, is_upper: bool) -> Option<Self> {
        let manner = Manner {
            is_read_only,
            is_cached: true,
            is_upper,
            is_as_it_is: false,
        };
        let most = Most {
            places: 64,
            watches: 0,
        };
        let server = Server::new(root, None, manner, most, Box::new(NoTable));
        server.ok().map(Self)
    }

    /// Answers a request of FUSE.
    pub fn answer(&self, request: &[u8]) -> Option<Vec<u8>> {
        self.0.answer(request)
    }
}
