//! Asks the policy about what is here and is named by its digest.

use std::net::IpAddr;
use std::sync::Arc;

use micabox_oci::{Digest, Reference};

use crate::Upstream;
use crate::problem::{Code, Problem};
use crate::serve::Replica;
use crate::upstream::Way;

/// Most names of a repository that are asked about for one digest.
const NAMES: usize = 8;

impl Replica {
    /// Asks the policy about a manifest or an index that is here, as its registry has it and its signatures now: under its
    /// digest, or else under the names that lead to it, as often an index alone is signed.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the policy refuses it, or it can't be asked yet. A registry that can't be reached is no obstacle, nor
    /// is one that has it no more.
    pub(crate) async fn judge(
        &self,
        upstream: &Arc<Upstream>,
        digest: Digest,
        name: &Reference,
        way: Way,
        address: IpAddr,
    ) -> Result<(), Problem> {
        let is_final = |problem: &Problem| problem.after.is_some() || problem.code == Code::Denied;
        let brought = self.bring(upstream, name, way, address, false).await;
        let Some(refused) = brought.err().filter(is_final) else {
            return Ok(());
        };
        if refused.code != Code::Denied {
            return Err(refused);
        }
        for name in self.names_of(digest, name).await {
            let brought = self.bring(upstream, &name, way, address, true).await;
            if brought.is_ok() && self.names_of(digest, &name).await.contains(&name) {
                return Ok(());
            }
        }
        Err(refused)
    }

    /// Returns the names in a repository that lead to a manifest or an index, without the digest's own.
    async fn names_of(&self, digest: Digest, of: &Reference) -> Vec<Reference> {
        let of = of.clone();
        let found = self.blocking(move |catalog| {
            let store = catalog.store();
            let images = store.images().unwrap_or_default();
            let names = images.into_iter().flat_map(|image| {
                let manifest = image.manifest_digest;
                let names = image.references.into_iter();
                names.map(move |name| (manifest, name))
            });
            let leads = |(manifest, name): &(Digest, Reference)| {
                name.registry() == of.registry()
                    && name.repository() == of.repository()
                    && name.digest() != Some(&digest)
                    && (*manifest == digest
                        || store.indexes(name).unwrap_or_default().contains(&digest))
            };
            let names = names.filter(leads).map(|(_, name)| name);
            Ok(names.take(NAMES).collect())
        });
        found.await.unwrap_or_default()
    }
}
