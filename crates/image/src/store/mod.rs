//! The store: layers, images and references as plain files, shared by any number of processes
//! through file locks.
//!
//! ```text
//! layers/sha256/<xx>/<diff ID>.erofs   a layer (containerd's layer_content_caches layout)
//! layers/sha256/<xx>/<diff ID>.recipe  from which its archive is rebuilt
//! layers/sha256/<xx>/<diff ID>.chunks  in place of the image of a packed layer: its chunks
//! packs/sha256/<xx>/<pack>.pack        chunks of packed layers and files
//! layers/sha256/<xx>/<diff ID>.lazy    of a layer of which only a part is here, with .blob and .metadata
//! layers/sha256/<xx>/<diff ID>.json    its metadata; a layer without it doesn't exist
//! blobs/sha256/<xx>/<blob>.json        the layer that a blob contains
//! blobs/sha256/<xx>/<blob>.blob        a blob as it came, or an index that led to an image, if they are kept
//! images/sha256/<manifest>/            manifest.json, config.json, image.json, fsmeta.erofs,
//!                                      fixup.erofs, disk.vmdk
//! images/sha256/<manifest>/order.json  the order in which a start read its layers, if they were not here
//! images/sha256/<manifest>/trimmed/<list>/   a view: view.json, fsmeta.erofs, disk.vmdk
//! images/sha256/<manifest>/disk.verity   the hash tree of its disk, once a guest has checked what it reads, and
//!                                        disk.verity.json; a view has its own
//! refs/<reference>                     the image that a name refers to
//! sandboxes/<id>/lease.json            the image that a sandbox uses
//! sandboxes/<id>/<file>.chunks         in place of a snapshot's disk or memory that is packed: its chunks
//! volumes/<name>/<file>.chunks         in place of a volume's disk that is packed
//! locks/, tmp/                         unfinished files; starts of blobs (<blob>.blob)
//! ```
//!
//! Every published file is complete and on the disk: it is made in `tmp`, synced, renamed to its
//! place, and the directory is synced. Images and layers never change afterwards.

mod checksum;
mod chunked;
mod disk_tree;
mod durable;
mod error;
mod file_starts;
mod files;
mod fsck;
mod fsck_report;
mod image;
mod image_record;
mod images;
mod kept;
mod last_use;
mod layer_archive;
mod layers;
mod layout;
mod lazy;
mod leases;
mod lock;
mod merged;
mod pack;
mod packed;
mod packs;
mod partial;
mod private;
mod prune;
mod reachability;
mod references;
mod scratch;
mod share;
mod stacked;
mod trimmed;
mod usage;
mod verity;
pub mod vmdk;
mod writeback;

pub use checksum::Checksum;
pub use disk_tree::DiskTree;
pub use error::{Error, Result};
pub use files::{
    FilePacked, PackedFile, PackedSize, Packing, is_packed_file, list_of, packed_size,
};
pub use fsck::FsckOptions;
pub use fsck_report::{Finding, FsckReport, Repair};
pub use image::{Fixup, Image};
pub use images::ImageSummary;
pub use kept::KeptBlob;
pub use layer_archive::LayerArchive;
pub use layers::{Claim, Layer, LayerClaim, LayerRecord, PADDING, RecipeRecord};
pub use lazy::{CompleteError, LazyClaim, LazyLayer, LazyRecord};
pub use leases::HELD;
pub use lock::Lock;
pub use micabox_pack::Cache;
pub use pack::{PackChoice, PackReport, Patience};
pub use packed::LayerImage;
pub use partial::{Keeping, Partial};
pub use prune::{PruneOptions, Pruned, Removed};
pub use references::Origin;
pub use trimmed::View;
pub use usage::{ImageUsage, Usage};

pub(crate) use checksum::{ChecksummedFile, Hasher};
pub(crate) use error::Context;
pub(crate) use file_starts::file_starts;
pub(crate) use layers::RECIPE;

pub(crate) use scratch::Scratch;
pub(crate) use stacked::{Whole, stacked};

use std::env;
use std::path::{Path, PathBuf};

use layout::Layout;
use micabox_ground::locked::Mode;
use micabox_oci::Digest;
use micabox_oci::reference::Reference;
use scratch::Leftover;

/// Result of resolving a name.
pub(crate) struct ImageName {
    pub reference: Option<Reference>,
    pub manifest: Digest,
}

/// A store. Cheap to clone; clones and other processes may use one store at the same time.
#[derive(Debug, Clone)]
pub struct Store {
    layout: Layout,
    /// The former mode of its root, if other users had access to it before it was opened.
    tightened: Option<u32>,
    /// Whether files get fs-verity where the filesystem has it.
    verity: bool,
}

impl Store {
    /// Opens the store at `root`, makes it if it is missing, and removes leftovers of killed
    /// processes. A store is private to its owner: the access of other users to a store of this
    /// user is removed, see [`Self::tightened`].
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::Full`] if directories can't be made.
    pub fn open(root: &Path) -> Result<Self> {
        // Relative paths would change their meaning with the current directory.
        let root = std::path::absolute(root).context("resolve", root)?;
        let layout = Layout { root };
        let tightened = private::make_root(&layout)?;
        for directory in layout::DIRECTORIES {
            durable::create_directories(&layout.root.join(directory))?;
        }
        let store = Self {
            layout,
            tightened,
            verity: true,
        };
        for leftover in Leftover::find(&store.layout.tmp()) {
            // A leftover that can't be removed is harmless.
            let _ = leftover.remove();
        }
        Ok(store)
    }

    /// Returns `$MICABOX_HOME`, or `micabox` in the user's data directory by the XDG specification.
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
        // The XDG specification requires relative paths to be ignored.
        if let Some(data) = absolute("XDG_DATA_HOME") {
            return Ok(data.join("micabox"));
        }
        match absolute("HOME") {
            Some(home) => Ok(home.join(".local/share/micabox")),
            None => Err(Error::NoHome),
        }
    }

    /// Returns the mode of the root before [`Self::open`] removed other users' access; `None` if
    /// nothing had to be changed.
    pub fn tightened(&self) -> Option<u32> {
        self.tightened
    }

    /// Returns the store's root, an absolute path.
    pub fn root(&self) -> &Path {
        &self.layout.root
    }

    /// Returns the directory with the sandboxes' directories.
    pub fn sandboxes(&self) -> PathBuf {
        self.layout.sandboxes()
    }

    /// Makes a directory for unfinished files, which is removed on drop.
    pub(crate) fn scratch(&self) -> Result<Scratch> {
        Scratch::new(&self.layout.tmp())
    }

    /// Makes a file with these bytes and without a name.
    ///
    /// # Errors
    ///
    /// Errors of the disk.
    pub fn unnamed(&self, bytes: &[u8]) -> Result<std::fs::File> {
        use std::io::Write;
        let scratch = self.scratch()?;
        let mut file = scratch.create("unnamed")?;
        let path = scratch.path("unnamed");
        file.write_all(bytes).context("write", &path)?;
        Ok(file)
    }

    /// Keeps prune from running while the lock is held: from looking up what exists until an image
    /// is published or a sandbox has its lease. Waits while prune runs.
    ///
    /// A thread that holds this must not prune.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the lock can't be taken.
    pub fn shared(&self) -> Result<Lock> {
        Lock::wait(&self.layout.store_lock(), Mode::Shared)
    }
}
