//! The servers of layers that are not whole, as a machine's monitor needs them.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use micabox_ground::chain;
use micabox_image::Store;
use micabox_vmm::PartServers;

/// Those of a store's images, whose names are the digests of manifests.
#[derive(Debug)]
pub(super) struct LayerServers {
    /// The root of the store.
    pub(super) store: PathBuf,
}

impl PartServers for LayerServers {
    fn connect(&self, server: &str) -> io::Result<UnixStream> {
        let store = Store::open(&self.store).map_err(io::Error::other)?;
        let connected = micabox_holders::connect(&store, server);
        connected.map_err(|error| io::Error::other(chain(&error).to_string()))
    }
}
