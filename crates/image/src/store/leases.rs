//! Leases: the images that sandboxes use, which prune must not remove.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Store;
use super::durable;
use super::error::{Error, Result};
use micabox_oci::Digest;

/// Beginning of the ids of processes that hold an image for sandboxes, and end after the last of these.
pub const HELD: &str = "lower-";

/// Name of the file in a sandbox's directory.
const FILE: &str = "lease.json";

#[derive(Debug, Serialize, Deserialize)]
struct LeaseRecord {
    /// The only image, in leases of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    manifest: Option<Digest>,
    #[serde(default)]
    manifests: Vec<Digest>,
}

/// A sandbox and the images that it holds.
pub(crate) struct Lease {
    pub sandbox: String,
    /// Empty if the sandbox has no lease, or not yet.
    pub manifests: Result<Vec<Digest>>,
}

impl LeaseRecord {
    fn into_manifests(self) -> impl Iterator<Item = Digest> {
        self.manifest.into_iter().chain(self.manifests)
    }
}

impl Store {
    /// Keeps images for a sandbox until the sandbox's directory is removed, by the sandbox's owner.
    /// Makes the directory if it is missing, and replaces the sandbox's lease if it has one.
    ///
    /// # Errors
    ///
    /// Errors of [`Store::image_by_digest`]; an invalid sandbox id; errors of the disk.
    pub fn lease(&self, sandbox: &str, manifests: &[Digest]) -> Result<()> {
        self.lease_with(sandbox, manifests, |path, record| {
            durable::publish_json(&self.layout.tmp(), path, record)
        })
    }

    /// As [`Store::lease`], for a sandbox that a crash of this machine ends: the lease may be lost with it. It
    /// waits for no disk.
    ///
    /// # Errors
    ///
    /// As [`Store::lease`].
    pub fn lease_until_crash(&self, sandbox: &str, manifests: &[Digest]) -> Result<()> {
        self.lease_with(sandbox, manifests, durable::replace_json)
    }

    fn lease_with(
        &self,
        sandbox: &str,
        manifests: &[Digest],
        write: impl FnOnce(&Path, &LeaseRecord) -> Result<()>,
    ) -> Result<()> {
        let _shared = self.shared()?;
        for manifest in manifests {
            let image = self.image_by_digest(manifest)?;
            self.note_use(&image);
        }
        let record = LeaseRecord {
            manifest: None,
            manifests: manifests.to_vec(),
        };
        write(&self.lease_path(sandbox)?, &record)
    }

    /// Returns the leases of all sandboxes, by sandbox.
    pub(crate) fn leases(&self) -> Result<Vec<Lease>> {
        let sandboxes = durable::list(&self.layout.sandboxes())?;
        sandboxes
            .into_iter()
            .map(|sandbox| {
                let path = self.lease_path(&sandbox)?;
                let record = durable::read_json_that_was_kept::<LeaseRecord>(&path);
                Ok(Lease {
                    sandbox,
                    manifests: record.map(|record| {
                        let record = record.into_iter();
                        record.flat_map(LeaseRecord::into_manifests).collect()
                    }),
                })
            })
            .collect()
    }

    /// Returns the path of a sandbox's lease.
    pub(crate) fn lease_path(&self, sandbox: &str) -> Result<PathBuf> {
        let mut components = Path::new(sandbox).components();
        match (components.next(), components.next()) {
            (Some(Component::Normal(_)), None) => {
                Ok(self.layout.sandboxes().join(sandbox).join(FILE))
            }
            _ => Err(Error::Invalid {
                what: "the sandbox's id",
                problem: format!("`{sandbox}` can't be a directory's name"),
            }),
        }
    }
}
