//! Whether the policy lets an image be pulled: fetches its signatures, if they matter.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use micabox_image::Digest;
use micabox_oci::Reference;
use micabox_registry::Repository;
use micabox_trust::{Policy, Scope, Signature, Subject, attached_tag, signatures_of};

use crate::PullError;

/// What a policy decides about, if it is not only what is pulled.
pub(crate) struct Judged {
    /// The name that the user gave.
    pub(crate) name: Reference,
    /// Digest of the index that has led to what is pulled.
    pub(crate) above: Option<Digest>,
}

impl Judged {
    /// Returns the image's signers, as far as the policy asks. `pulled` are the digests of its manifest, and of the
    /// document that led to it.
    ///
    /// # Errors
    ///
    /// [`PullError::Refused`]; the registry's.
    pub(crate) async fn signers(
        &self,
        policy: &Policy,
        repository: &Repository,
        pulled: [Digest; 2],
    ) -> Result<Vec<String>, PullError> {
        let mut manifests: Vec<_> = pulled.into_iter().chain(self.above).collect();
        manifests.dedup();
        let reference = &self.name;
        let scope = Scope::Registry(reference);
        let mut signatures = Vec::new();
        if policy.needs_signatures(scope) {
            for manifest in &manifests {
                signatures.extend(attached(repository, reference, manifest).await?);
            }
        }
        let subject = Subject {
            reference: Some(reference),
            manifests: &manifests,
        };
        match policy.check(scope, subject, &signatures) {
            Ok(signers) => Ok(signers.iter().map(ToString::to_string).collect()),
            Err(source) => Err(PullError::Refused {
                image: reference.to_string(),
                source: Box::new(source),
            }),
        }
    }
}

/// Fetches the signatures that are attached to a manifest.
async fn attached(
    repository: &Repository,
    reference: &Reference,
    manifest: &Digest,
) -> Result<Vec<Signature>, PullError> {
    let (registry, name) = (reference.registry(), reference.repository());
    let tag = format!("{registry}/{name}:{}", attached_tag(manifest));
    // A repository's name and a tag of hexadecimal digits.
    let Ok(tag) = tag.parse::<Reference>() else {
        return Ok(Vec::new());
    };
    let fetched = match repository.named(&tag).await {
        Ok(fetched) => fetched,
        Err(error) if error.reason.is_missing() => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let listed = signatures_of(&fetched.bytes).map_err(|source| PullError::Signatures {
        image: reference.to_string(),
        source,
    })?;
    // What several keys have signed is one blob.
    let mut payloads: HashMap<Digest, Vec<u8>> = HashMap::new();
    let mut signatures = Vec::with_capacity(listed.len());
    for (payload, signature) in listed {
        let bytes = match payloads.entry(payload.digest) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(unknown) => {
                let fetched = repository
                    .blob("what is signed,", &payload.digest, Some(payload.size))
                    .await?;
                unknown.insert(fetched).clone()
            }
        };
        signatures.push(Signature {
            payload: bytes,
            ..signature
        });
    }
    Ok(signatures)
}
