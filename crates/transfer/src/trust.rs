//! Whether the policy lets an image be pulled: fetches its signatures, if they matter.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use micabox_image::Digest;
use micabox_oci::Reference;
use micabox_registry::Repository;
use micabox_trust::{Policy, Scope, Signature, Subject, attached_tag, signatures_of};

use crate::PullError;

/// Returns who signed an image, as far as the policy asks. `manifests` are the digests of its manifest, and of the
/// document that led to it.
///
/// # Errors
///
/// [`PullError::Refused`]; the registry's.
pub(crate) async fn signers(
    policy: &Policy,
    repository: &Repository,
    reference: &Reference,
    manifests: &[Digest],
) -> Result<Vec<String>, PullError> {
    let scope = Scope::Registry(reference);
    let mut signatures = Vec::new();
    if policy.needs_signatures(scope) {
        for manifest in manifests {
            signatures.extend(attached(repository, reference, manifest).await?);
        }
    }
    let subject = Subject {
        reference: Some(reference),
        manifests,
    };
    match policy.check(scope, subject, &signatures) {
        Ok(signers) => Ok(signers.iter().map(ToString::to_string).collect()),
        Err(source) => Err(PullError::Refused {
            image: reference.to_string(),
            source: Box::new(source),
        }),
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
