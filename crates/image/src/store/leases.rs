//! Leases: the images that sandboxes use, which prune must not remove.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Store;
use super::durable;
use super::error::{Error, Result};
use micabox_oci::Digest;

/// Name of the file in a sandbox's directory.
const FILE: &str = "lease.json";

#[derive(Debug, Serialize, Deserialize)]
struct LeaseRecord {
    manifest: Digest,
}

/// A sandbox and the image that it holds.
pub(crate) struct Lease {
    pub sandbox: String,
    /// `None` if the sandbox has no lease, or not yet.
    pub manifest: Result<Option<Digest>>,
}

impl Store {
    /// Keeps an image for a sandbox until the sandbox's directory is removed, by the sandbox's
    /// owner. Makes the directory if it is missing.
    ///
    /// # Errors
    ///
    /// Errors of [`Store::image_by_digest`]; an invalid sandbox id; errors of the disk.
    pub fn lease(&self, sandbox: &str, manifest: &Digest) -> Result<()> {
        let _shared = self.shared()?;
        self.image_by_digest(manifest)?;
        let path = self.lease_path(sandbox)?;
        durable::publish_json(
            &self.layout.tmp(),
            &path,
            &LeaseRecord {
                manifest: *manifest,
            },
        )
    }

    /// Returns the leases of all sandboxes, by sandbox.
    pub(crate) fn leases(&self) -> Result<Vec<Lease>> {
        let sandboxes = durable::list(&self.layout.sandboxes())?;
        sandboxes
            .into_iter()
            .map(|sandbox| {
                let path = self.lease_path(&sandbox)?;
                let record = durable::read_json::<LeaseRecord>(&path);
                Ok(Lease {
                    sandbox,
                    manifest: record.map(|r| r.map(|r| r.manifest)),
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
