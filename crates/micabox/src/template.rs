//! Warm templates: machines that were saved when they had just come up, so that others
//! like them need not boot.
//!
//! ```text
//! templates/<key>/   as a snapshot with memory has it; complete as soon as it is there
//! templates/.<...>   one under construction
//! ```
//!
//! The key is of everything that a machine is made of. So one that would come out another
//! way now is just never looked for. A template itself is never resumed: machines go on
//! from it, each for itself. It is for one boot of the host, after which its pages would be
//! no warmer than a boot is fast, and nobody needs to see to it that it is on disk.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use micabox_image::store::Image;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::plan::Plan;
use crate::snapshot::memory;
use crate::{GuestFiles, SavedMachine};

/// To be raised with every change to what a machine is made of that no other part of the
/// key tells.
const FORMAT: u32 = 1;

/// Where a template is, or would be.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    directory: PathBuf,
}

impl Template {
    /// The place of the template for machines of `image` as `plan` says, started from
    /// `guest`'s files and with `settings`, in the store at `root`. None if it can't be
    /// found out.
    pub(crate) fn place(
        root: &Path,
        image: &Image,
        plan: &Plan,
        guest: &GuestFiles,
        settings: &Value,
    ) -> Option<Self> {
        let file = |path: &Path| {
            let meta = fs::metadata(path).ok()?;
            let changed = (meta.ctime(), meta.ctime_nsec());
            Some(json!([meta.dev(), meta.ino(), meta.len(), changed]))
        };
        let key = json!({
            "format": FORMAT,
            "version": env!("CARGO_PKG_VERSION"),
            "host": fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?,
            "program": file(Path::new("/proc/self/exe"))?,
            "kernel": file(&guest.kernel)?,
            "agent": file(&guest.initrd)?,
            "image": image.manifest_digest.to_string(),
            "plan": format!("{:?} {:?}", plan.pmem, plan.disks),
            "settings": settings,
        });
        let key = Sha256::digest(key.to_string());
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Self {
            directory: root.join("templates").join(key),
        })
    }

    /// The machine in it, if it is there.
    pub(crate) fn machine(&self) -> Option<SavedMachine> {
        memory::description(&self.directory).ok()
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Has `save` make it in a directory that it is given, unless it is there. If anything
    /// fails there is no template, which nobody needs.
    pub(crate) fn make<E>(&self, save: impl FnOnce(&Path) -> Result<(), E>) {
        if self.directory.exists() {
            return;
        }
        let Some(parent) = self.directory.parent() else {
            return;
        };
        let make = || -> io::Result<tempfile::TempDir> {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)?;
            tempfile::Builder::new().prefix(".").tempdir_in(parent)
        };
        let Ok(unfinished) = make() else { return };
        if save(unfinished.path()).is_ok() {
            // Somebody else may have been faster; then this one goes.
            let _ = fs::rename(unfinished.path(), &self.directory);
        }
    }

    /// Removes one that turned out to be of no use.
    pub(crate) fn discard(&self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
