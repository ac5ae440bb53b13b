//! The store: layers, images and references as plain files, shared by any number of
//! processes through file locks.
//!
//! ```text
//! layers/sha256/<xx>/<diff ID>.erofs   a layer (containerd's layer_content_caches layout)
//! layers/sha256/<xx>/<diff ID>.recipe  how to make its archive again
//! layers/sha256/<xx>/<diff ID>.json    what is known of it; without this it isn't there
//! blobs/sha256/<xx>/<blob>.json        which layer a blob holds
//! images/sha256/<manifest>/            manifest.json, config.json, image.json, fsmeta.erofs,
//!                                      fixup.erofs, disk.vmdk
//! refs/<reference>                     which image a name means
//! sandboxes/<id>/lease.json            which image a sandbox runs on
//! locks/, tmp/                         what is being made; starts of blobs (<blob>.blob)
//! ```
//!
//! Whatever becomes visible is complete and on the disk: it is made in `tmp`, synced, renamed
//! to its place, and the directory is synced. Images and layers never change afterwards.

mod census;
mod checksum;
mod durable;
mod error;
mod fsck;
mod images;
mod layer_archive;
mod layers;
mod layout;
mod leases;
mod lock;
mod merged;
mod partial;
mod private;
mod prune;
mod references;
mod scratch;
mod usage;
pub mod vmdk;
mod writeback;

pub use checksum::Checksum;
pub use error::{Error, Result};
pub use fsck::{Finding, FsckOptions, FsckReport, Repair};
pub use images::{Fixup, Image, ImageSummary};
pub use layer_archive::LayerArchive;
pub use layers::{Claim, Layer, LayerClaim, LayerRecord, PADDING, RecipeRecord};
pub use lock::Lock;
pub use partial::{Keeping, Partial};
pub use prune::{PruneOptions, Pruned, Removed};
pub use usage::{ImageUsage, Usage};

pub(crate) use checksum::ChecksummedFile;
pub(crate) use error::Context;
pub(crate) use layers::RECIPE;

pub(crate) use scratch::Scratch;

use std::env;
use std::path::{Path, PathBuf};

use layout::Layout;
use lock::Mode;
use micabox_oci::Digest;
use micabox_oci::reference::Reference;
use scratch::Leftover;

/// What a name turned out to mean.
pub(crate) struct ImageName {
    pub reference: Option<Reference>,
    pub manifest: Digest,
}

/// A store. Cheap to clone; clones and other processes may use one at the same time.
#[derive(Debug, Clone)]
pub struct Store {
    layout: Layout,
    /// The mode that its root had until it was opened, if others could get at it.
    tightened: Option<u32>,
}

impl Store {
    /// Opens the store at `root`, which is made if it isn't there, and removes what killed
    /// processes left in it. A store is its owner's alone: one of this user's that others can
    /// get at is changed, see [`Self::tightened`].
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::Full`] for directories that can't be made.
    pub fn open(root: &Path) -> Result<Self> {
        // Relative paths would mean something else after a change of directory.
        let root = std::path::absolute(root).context("resolve", root)?;
        let layout = Layout { root };
        let tightened = private::make_root(&layout)?;
        for directory in layout::DIRECTORIES {
            durable::create_directories(&layout.root.join(directory))?;
        }
        let store = Self { layout, tightened };
        for leftover in Leftover::find(&store.layout.tmp()) {
            // Litter that can't be removed harms nothing that this process wants to do.
            let _ = leftover.remove();
        }
        Ok(store)
    }

    /// `$MICABOX_HOME`, or `micabox` in the user's data directory as XDG defines it.
    ///
    /// # Errors
    ///
    /// [`Error::NoHome`].
    pub fn default_root() -> Result<PathBuf> {
        let absolute = |name: &str| {
            env::var_os(name)
                .map(PathBuf::from)
                .filter(|p| p.is_absolute())
        };
        if let Some(home) = env::var_os("MICABOX_HOME").filter(|home| !home.is_empty()) {
            return Ok(home.into());
        }
        // The specification wants relative paths ignored.
        if let Some(data) = absolute("XDG_DATA_HOME") {
            return Ok(data.join("micabox"));
        }
        match absolute("HOME") {
            Some(home) => Ok(home.join(".local/share/micabox")),
            None => Err(Error::NoHome),
        }
    }

    /// The mode of the root until [`Self::open`] took everybody but the owner out of it; `None`
    /// if nothing had to be changed.
    pub fn tightened(&self) -> Option<u32> {
        self.tightened
    }

    /// Where the store is; absolute.
    pub fn root(&self) -> &Path {
        &self.layout.root
    }

    /// Where sandboxes keep their state, a directory each.
    pub fn sandboxes(&self) -> PathBuf {
        self.layout.sandboxes()
    }

    /// A directory for what is made on the way to somewhere else; gone when dropped.
    pub(crate) fn scratch(&self) -> Result<Scratch> {
        Scratch::new(&self.layout.tmp())
    }

    /// A file with these bytes that has no name.
    ///
    /// # Errors
    ///
    /// Those of the disk.
    pub fn unnamed(&self, bytes: &[u8]) -> Result<std::fs::File> {
        use std::io::Write;
        let scratch = self.scratch()?;
        let mut file = scratch.create("unnamed")?;
        let path = scratch.path("unnamed");
        file.write_all(bytes).context("write", &path)?;
        Ok(file)
    }

    /// Keeps prune away while the lock is held: from finding out what is there until an
    /// image is published or a sandbox has its lease. Waits while prune runs.
    ///
    /// A thread that holds this must not prune.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] for a lock that can't be taken.
    pub fn shared(&self) -> Result<Lock> {
        Lock::wait(&self.layout.store_lock(), Mode::Shared)
    }
}
