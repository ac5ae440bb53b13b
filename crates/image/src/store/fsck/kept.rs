//! Checks of blobs that are kept as they came.

use super::Fsck;
use crate::store::durable;
use crate::store::error::{Error, Result};
use crate::store::fsck_report::Repair;
use crate::store::reachability::KeptEntry;
use micabox_oci::Digest;

impl Fsck<'_> {
    /// Checks a blob that is kept as it came.
    pub(super) fn kept(&mut self, digest: &Digest, entry: &KeptEntry) -> Result<()> {
        // It may be replaced meanwhile.
        let Some(blob) = self.store.kept_blob(digest)? else {
            return Ok(());
        };
        self.report.blobs += 1;
        self.report.bytes += blob.size();
        match blob.check() {
            Err(Error::Damaged { problem, .. }) => {
                self.finding(&entry.path, problem, Repair::RemoveBlob, |_| {
                    durable::remove_file(&entry.path)
                })
            }
            checked => checked.map(drop),
        }
    }
}
