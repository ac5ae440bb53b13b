//! Whether the policy lets an image be pulled: fetches its signatures, if they matter.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use micabox_image::{Descriptor, Digest};
use micabox_oci::Reference;
use micabox_registry::{RegistryError, Repository};
use micabox_trust::{
    BUNDLE_TYPE, Needs, Policy, Scope, Signature, Signatures, Subject, attached_tag, bundle_of,
    bundles_of, referrers_tag, signatures_of,
};

use crate::PullError;
use crate::lookaside::Beside;

/// What a policy decides about, if it is not only what is pulled.
pub(crate) struct Judged {
    /// The name that the user gave.
    pub(crate) name: Reference,
    /// Digest of the index that has led to what is pulled.
    pub(crate) above: Option<Digest>,
}

impl Judged {
    /// Returns the image's signers, as far as the policy asks. `pulled` are the digests of its manifest, and of the
    /// document that led to it; `beside` finds what is not in its repository.
    ///
    /// Signatures are fetched until those that are here will do: more of them change nothing. So one that can't be
    /// fetched is no obstacle where another will do, and the reason of the refusal where none does.
    ///
    /// # Errors
    ///
    /// [`PullError::Refused`]; the registry's.
    pub(crate) async fn signers(
        &self,
        policy: &Policy,
        repository: &Repository,
        beside: Beside<'_>,
        pulled: [Digest; 2],
    ) -> Result<Vec<String>, PullError> {
        let mut manifests: Vec<_> = pulled.into_iter().chain(self.above).collect();
        manifests.dedup();
        let reference = &self.name;
        let scope = Scope::Registry(reference);
        let subject = Subject {
            reference: Some(reference),
            manifests: &manifests,
        };
        let mut signatures = Signatures::default();
        let mut decided = policy.check(scope, subject, &signatures);
        let mut failed = None;
        for place in Place::all(policy.needs(scope), &manifests) {
            if decided.is_ok() {
                break;
            }
            let fetched = match place {
                Place::Attached(manifest) => attached(repository, reference, manifest)
                    .await
                    .map(|found| signatures.attached.extend(found)),
                Place::Bundles(manifest) => {
                    bundles(repository, reference, manifest, &mut signatures.bundles).await
                }
                Place::Beside => beside
                    .signatures(reference, &manifests)
                    .await
                    .map(|found| signatures.lookaside = found)
                    .map_err(|source| PullError::Beside {
                        image: reference.to_string(),
                        source,
                    }),
            };
            match fetched {
                Ok(()) => {}
                // No other question to it would be answered.
                Err(PullError::Registry(error)) if error.reason.is_unreachable() => {
                    return Err(error.into());
                }
                Err(error) => failed = failed.or(Some(error)),
            }
            decided = policy.check(scope, subject, &signatures);
        }
        match decided {
            Ok(signers) => Ok(signers.iter().map(ToString::to_string).collect()),
            Err(source) => Err(failed.unwrap_or_else(|| PullError::Refused {
                image: reference.to_string(),
                source: Box::new(source),
            })),
        }
    }
}

/// Where signatures are.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// Attached to a manifest.
    Attached(&'a Digest),
    /// In bundles that refer to a manifest.
    Bundles(&'a Digest),
    /// Beside the registry.
    Beside,
}

impl<'a> Place<'a> {
    /// Returns where the signatures of manifests are that matter.
    fn all(needs: Needs, manifests: &'a [Digest]) -> Vec<Self> {
        let of = |is_needed: bool, place: fn(&'a Digest) -> Self| {
            let manifests = manifests.iter().filter(move |_| is_needed);
            manifests.map(place)
        };
        of(needs.attached, Self::Attached)
            .chain(of(needs.bundles, Self::Bundles))
            .chain(needs.lookaside.then_some(Self::Beside))
            .collect()
    }
}

/// Fetches the signatures that are attached to a manifest.
async fn attached(
    repository: &Repository,
    reference: &Reference,
    manifest: &Digest,
) -> Result<Vec<Signature>, PullError> {
    let fetched = tagged(repository, reference, &attached_tag(manifest)).await?;
    let Some(fetched) = fetched else {
        return Ok(Vec::new());
    };
    let listed = signatures_of(&fetched).map_err(|source| PullError::Signatures {
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

/// Adds the bundles that refer to a manifest to `bundles`. Of those that can't be fetched, the first one's error is
/// returned when the others are there.
async fn bundles(
    repository: &Repository,
    reference: &Reference,
    manifest: &Digest,
    bundles: &mut Vec<Vec<u8>>,
) -> Result<(), PullError> {
    let listed = match repository.referrers(manifest, BUNDLE_TYPE).await? {
        Some(index) => Some(index),
        None => tagged(repository, reference, &referrers_tag(manifest)).await?,
    };
    let mut failed = None;
    for listed in bundles_of(&listed.unwrap_or_default()) {
        match bundle(repository, &listed).await {
            Ok(found) => bundles.extend(found),
            Err(error) if error.reason.is_unreachable() => return Err(error.into()),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Fetches the bundle that a manifest has; none if it has none.
async fn bundle(
    repository: &Repository,
    listed: &Descriptor,
) -> Result<Option<Vec<u8>>, RegistryError> {
    let manifest = repository.manifest(&listed.digest, Some(listed.size));
    let Some(blob) = bundle_of(&manifest.await?.bytes) else {
        return Ok(None);
    };
    let fetched = repository.blob("the bundle", &blob.digest, Some(blob.size));
    fetched.await.map(Some)
}

/// Fetches the document under a tag beside a reference; none if there is none.
async fn tagged(
    repository: &Repository,
    reference: &Reference,
    tag: &str,
) -> Result<Option<Vec<u8>>, PullError> {
    let (registry, name) = (reference.registry(), reference.repository());
    // A repository's name and a tag of hexadecimal digits.
    let Ok(tag) = format!("{registry}/{name}:{tag}").parse::<Reference>() else {
        return Ok(None);
    };
    match repository.named(&tag).await {
        Ok(fetched) => Ok(Some(fetched.bytes)),
        Err(error) if error.reason.is_missing() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
