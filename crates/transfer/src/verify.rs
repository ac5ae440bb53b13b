//! Checks an image of EROFS layers: the archives that the same name has are pulled and converted, and have to give the
//! same bits. Layers that this store has converted before are taken from it, if they still have their checksums.

use std::sync::Arc;

use tokio::task::spawn_blocking;

use micabox_image::export::{Conversion, ConversionError, ErofsEntry, convert_image};
use micabox_image::identity::FORMAT;
use micabox_image::manifest::{self, Document, Entry, Index, Manifest, ManifestError, erofs};
use micabox_image::{Digest, Platform, Progress, Reference, Store};
use micabox_oci::printable;
use micabox_registry::{RegistryError, Repository};
use serde_json::Value;

use crate::pull::{joined, pull_as};
use crate::trust::Judged;
use crate::{PullError, PullOptions, PullPolicy, threads};

/// A conversion that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Digest of the manifest of EROFS images, which was converted once more.
    pub erofs_manifest: Digest,
    /// Digest of the manifest of archives that it was made from.
    pub manifest: Digest,
    /// Number of layers.
    pub layers: usize,
    /// The version of zstd that has compressed what is published, if it is another one. Its blobs and their chunk indexes
    /// have other bits then, and were not compared: the digests of what is in them were.
    pub other_zstd: Option<String>,
}

/// Why a conversion is not shown to be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The archives can't be pulled.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The registry, or the connection to it, failed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A document of the registry's can't be used.
    #[error("cannot use {reference}: {source}")]
    Manifest {
        /// The image.
        reference: Box<Reference>,
        /// What is wrong with it.
        source: Box<ManifestError>,
    },
    /// There are not both forms to compare.
    #[error("{reference} has no {form} for {platform}")]
    NoForm {
        /// The image.
        reference: Box<Reference>,
        /// Which form is missing.
        form: &'static str,
        /// The platform.
        platform: Box<Platform>,
    },
    /// Another version converts otherwise.
    #[error(
        "{reference} was converted in format {format}; this version makes format {FORMAT}, and can't compare them"
    )]
    Format {
        /// The image.
        reference: Box<Reference>,
        /// What its manifest says.
        format: String,
    },
    /// The published form is not what the archives convert to.
    #[error("{reference} is not converted from its archives: {difference}")]
    Differs {
        /// The image.
        reference: Box<Reference>,
        /// The first difference.
        difference: String,
    },
    /// The archives can't be converted.
    #[error("cannot convert {reference}: {source}")]
    Conversion {
        /// The image.
        reference: Box<Reference>,
        /// Why.
        source: Box<ConversionError>,
    },
}

/// Runs [`verify_conversion`] and blocks until it ends, for callers outside of any asynchronous runtime.
///
/// # Errors
///
/// [`VerifyError`].
pub fn verify_conversion_blocking(
    store: &Store,
    reference: &Reference,
    options: &PullOptions,
    progress: Arc<dyn Progress>,
) -> Result<Verified, VerifyError> {
    let runtime = threads("mica-verify").map_err(PullError::Threads)?;
    let verified = runtime.block_on(verify_conversion(store, reference, options, progress));
    // Without waiting for threads: one may be waiting for another process.
    runtime.shutdown_background();
    verified
}

/// Converts the archives that `reference` names, and compares the result with the EROFS images that it names beside
/// them, bit for bit: manifest and config, and by their digests layers, merged metadata, hash trees, chunk indexes. Of
/// what another zstd has compressed, all of this but the bits of compressed blobs, with the indexes of these. Whether the
/// registry has the blobs, a pull shows. The archives' image is in the store then, under its digest.
///
/// # Errors
///
/// [`VerifyError::Differs`] if they differ.
pub async fn verify_conversion(
    store: &Store,
    reference: &Reference,
    options: &PullOptions,
    progress: Arc<dyn Progress>,
) -> Result<Verified, VerifyError> {
    let platform = options.platform.clone().unwrap_or_else(Platform::host);
    let unusable = |source| VerifyError::Manifest {
        reference: Box::new(reference.clone()),
        source: Box::new(source),
    };
    let repository = Repository::new(
        reference,
        &Arc::new(options.settings.for_registries()),
        &options.credentials,
        &progress,
    )?;
    let named = repository.named(reference).await?;
    let document = Document::parse(&named.bytes, named.media_type.as_deref()).map_err(unusable)?;
    let index = match document {
        Document::Index(index) => *index,
        Document::Manifest(_) => Index::default(),
    };
    let no_form = |form| VerifyError::NoForm {
        reference: Box::new(reference.clone()),
        form,
        platform: Box::new(platform.clone()),
    };
    let converted = form(&index, &platform, true).ok_or_else(|| no_form("form of EROFS images"))?;
    let archives = form(&index, &platform, false).ok_or_else(|| no_form("form of archives"))?;
    let digest_of = |entry| manifest::digest_of(entry, "index", "manifest").map_err(unusable);
    let (converted_digest, archives_digest) = (digest_of(converted)?, digest_of(archives)?);
    let published = repository
        .manifest(&converted_digest, converted.size)
        .await?;
    let manifest = match Document::parse(&published.bytes, published.media_type.as_deref()) {
        Ok(Document::Manifest(manifest)) => *manifest,
        Ok(Document::Index(_)) => return Err(no_form("form of EROFS images")),
        Err(error) => return Err(unusable(error)),
    };
    check_format(reference, &manifest)?;

    let pulled = PullOptions {
        policy: PullPolicy::Missing,
        lazy: false,
        platform: Some(platform.clone()),
        ..options.clone()
    };
    let by_digest = reference.with_digest(archives_digest);
    // The policy is asked about the name that was said.
    let judged = Judged {
        name: reference.clone(),
        above: Some(named.digest),
    };
    let image = pull_as(store, &by_digest, judged, &pulled, Arc::clone(&progress)).await?;
    // An index may list EROFS images as archives: they would be compared with themselves.
    if image
        .layers
        .iter()
        .any(|layer| layer.record.recipe.is_none())
    {
        return Err(no_form("form of archives"));
    }
    let (in_store, layers) = (store.clone(), image.layers.len());
    let converting = spawn_blocking(move || convert_image(&in_store, &image, &*progress)).await;
    let conversion = joined(converting).map_err(|source| VerifyError::Conversion {
        reference: Box::new(reference.clone()),
        source: Box::new(source),
    })?;
    let differs = |published: &Manifest| VerifyError::Differs {
        reference: Box::new(reference.clone()),
        difference: difference(published, &conversion),
    };
    let ours = &conversion.documents.manifest;
    let other_zstd = other_zstd(&manifest);
    if other_zstd.is_none() && *ours != published.bytes {
        return Err(differs(&manifest));
    }
    if other_zstd.is_some() {
        let (published, is_same) = as_compressed_here(&published.bytes, ours).map_err(unusable)?;
        if !is_same {
            return Err(differs(&published));
        }
    }
    Ok(Verified {
        erofs_manifest: converted_digest,
        manifest: archives_digest,
        layers,
        other_zstd,
    })
}

/// Returns the version of zstd that a manifest names, if it is not this program's.
fn other_zstd(manifest: &Manifest) -> Option<String> {
    let said = said(manifest, erofs::ZSTD);
    (said != micabox_image::export::zstd_version()).then_some(said)
}

/// Returns a manifest with what depends on zstd as `ours` has it, and whether it is the same as `ours` then.
fn as_compressed_here(published: &[u8], ours: &[u8]) -> Result<(Manifest, bool), ManifestError> {
    let malformed = |error: serde_json::Error| ManifestError::Malformed {
        document: "manifest",
        message: error.to_string(),
    };
    let mut published: Value = serde_json::from_slice(published).map_err(malformed)?;
    let ours: Value = serde_json::from_slice(ours).map_err(malformed)?;
    let take = |to: &mut Value, from: &Value, names: &[&str]| {
        for name in names {
            if let (Some(to), Some(from)) = (to.get_mut(*name), from.get(*name)) {
                *to = from.clone();
            }
        }
    };
    let annotations = |of: &mut Value, from: &Value, names: &[&str]| {
        if let (Some(of), Some(from)) = (of.get_mut("annotations"), from.get("annotations")) {
            take(of, from, names);
        }
    };
    annotations(&mut published, &ours, &[erofs::ZSTD]);
    let layers = published.get_mut("layers").and_then(Value::as_array_mut);
    let here = ours.get("layers").and_then(Value::as_array);
    for (layer, here) in layers.into_iter().flatten().zip(here.into_iter().flatten()) {
        take(layer, here, &["digest", "size"]);
        annotations(layer, here, &[erofs::INDEX_RANGE, erofs::INDEX_DIGEST]);
    }
    let is_same = published == ours;
    match Document::parse(published.to_string().as_bytes(), None)? {
        Document::Manifest(manifest) => Ok((*manifest, is_same)),
        Document::Index(_) => Err(ManifestError::Malformed {
            document: "manifest",
            message: "it is an index".to_owned(),
        }),
    }
}

/// Returns the best image for a platform that is, or is not, of EROFS layers.
pub(crate) fn form<'a>(index: &'a Index, wanted: &Platform, is_erofs: bool) -> Option<&'a Entry> {
    let suitable = index.entries.iter().filter_map(|entry| {
        let platform = entry.platform()?;
        let rank = wanted.suits(&platform)?;
        (platform.has_feature(erofs::FEATURE) == is_erofs).then_some((rank, entry))
    });
    // Of equal ones the first.
    suitable
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, entry)| entry)
}

fn check_format(reference: &Reference, manifest: &Manifest) -> Result<(), VerifyError> {
    let format = said(manifest, erofs::FORMAT);
    if format == FORMAT.to_string() {
        return Ok(());
    }
    Err(VerifyError::Format {
        reference: Box::new(reference.clone()),
        format,
    })
}

/// Returns what a manifest says under a name.
fn said(manifest: &Manifest, name: &str) -> String {
    match manifest.annotations.get(name) {
        Some(value) => printable(value),
        None => "unknown".to_owned(),
    }
}

/// Says what differs first.
fn difference(published: &Manifest, conversion: &Conversion) -> String {
    let (there, here) = (published.layers.len(), conversion.images.len());
    if there != here {
        return format!("it has {there} EROFS images, and its archives convert to {here}");
    }
    let what = |number: usize| match number + 1 {
        last if last == here => "the merged metadata".to_owned(),
        number => format!("layer {number}"),
    };
    for (number, (entry, image)) in published.layers.iter().zip(&conversion.images).enumerate() {
        if let Some(differs) = entry_difference(entry, image) {
            return format!("of {}, {differs}", what(number));
        }
    }
    let config = Digest::of(&conversion.documents.config);
    if published.config.digest != config.to_string() {
        return format!(
            "its config is {}, and its archives' becomes {config}",
            printable(&published.config.digest)
        );
    }
    "other fields of its manifest".to_owned()
}

fn entry_difference(entry: &Entry, image: &ErofsEntry) -> Option<String> {
    let differs = |what: &str, there: &str, here: &str| {
        let there = printable(there);
        (there != here).then(|| format!("{what} is {there}, and converted {here}"))
    };
    let annotations = image.annotations.iter().map(|(name, value)| {
        let there = entry.annotation(name).unwrap_or("missing");
        (*name, there, value.as_str())
    });
    let size = entry.size.unwrap_or(0).to_string();
    let fields = [
        (
            "the digest",
            entry.digest.as_str(),
            &*image.blob.digest.to_string(),
        ),
        ("the size", &size, &*image.blob.size.to_string()),
        ("the media type", &entry.media_type, &image.blob.media_type),
    ]
    .map(|(what, there, here)| differs(what, there, here));
    let mut annotations = annotations.map(|(name, there, here)| differs(name, there, here));
    // What is in an image says more than how it is compressed.
    annotations
        .find_map(|difference| difference)
        .or_else(|| fields.into_iter().flatten().next())
}
