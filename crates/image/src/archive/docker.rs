//! Reads archives of `docker save`: `manifest.json` lists images, each with its config, its names
//! and one uncompressed archive for every layer. Up to version 24 there is no more, and the
//! archives of layers that occur twice are symbolic links.

use std::io::Read;

use micabox_ground::piece;
use micabox_oci::ImageConfiguration;
use serde::{Deserialize, Serialize};

use super::{Archive, ArchivedImage, ArchivedLayer, Found, Problem};
use crate::convert::decompress::{Compression, MAGIC_LENGTH};
use crate::export::{MANIFEST_TYPE, config_descriptor};
use crate::manifest::{self, ManifestError, Search};
use crate::{Descriptor, Digest, Limits, Platform, Reference, printable};
use micabox_oci::Hasher;
use micabox_oci::json::{self, Json};

/// The list of images.
pub(super) const MANIFEST: &str = "manifest.json";
/// The list of images before [`MANIFEST`] existed.
pub(super) const REPOSITORIES: &str = "repositories";

/// An image in `manifest.json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Item {
    config: String,
    repo_tags: Vec<String>,
    layers: Vec<String>,
}

/// Reads the list; its items each by themselves, since one of another shape is no reason to load
/// none of the others.
fn items(archive: &Archive) -> Result<Vec<Result<Item, Problem>>, Problem> {
    let malformed = |error: json::Error| Problem::Malformed {
        name: MANIFEST.to_owned(),
        problem: printable(&error.to_string()),
    };
    let bytes = archive.document(MANIFEST)?;
    let items: Vec<Json> = json::from_slice(&bytes).map_err(malformed)?;
    let items = items.into_iter();
    Ok(items
        .map(|item| Item::deserialize(item).map_err(malformed))
        .collect())
}

pub(super) fn images(
    archive: &Archive,
    wanted: &Platform,
    limits: &Limits,
) -> Result<Found, Problem> {
    let mut found = Found::default();
    for item in items(archive)? {
        let read = item.and_then(|item| {
            let image = image(archive, &item, wanted, limits)?;
            // Docker's own words for no name are none.
            let tags = item.repo_tags.into_iter();
            let wrong = |tag: String| match tag.as_str() {
                "" | "<none>:<none>" => None,
                tag => tag.parse::<Reference>().err(),
            };
            found
                .left_out
                .extend(tags.filter_map(wrong).map(Problem::Name));
            Ok(image)
        });
        match read {
            Ok(image) => found.add(image),
            Err(problem) => found.leave_out(problem, true),
        }
    }
    Ok(found)
}

/// Adds the names in `manifest.json`, if there is one, to the images of a layout.
pub(super) fn add_names(archive: &Archive, found: &mut Found) -> Result<(), Problem> {
    if archive.member(MANIFEST)?.is_none() {
        return Ok(());
    }
    for item in items(archive)?.into_iter().flatten() {
        let is_it = |image: &ArchivedImage| {
            let hex = Digest::of(&image.config).hex();
            item.config.rsplit('/').next() == Some(hex.as_str())
        };
        for at in 0..found.images.len() {
            if found.images.get(at).is_some_and(is_it) {
                found.name(at, names(&item));
            }
        }
    }
    Ok(())
}

fn names(item: &Item) -> impl Iterator<Item = Reference> {
    item.repo_tags.iter().filter_map(|tag| tag.parse().ok())
}

fn image(
    archive: &Archive,
    item: &Item,
    wanted: &Platform,
    limits: &Limits,
) -> Result<ArchivedImage, Problem> {
    let names: Vec<Reference> = names(item).collect();
    let called = match names.first() {
        Some(name) => name.familiar(),
        None => printable(&item.config),
    };
    let unusable = |source| Problem::Manifest {
        image: called.clone(),
        source,
    };
    if item.config.is_empty() {
        return Err(Problem::Malformed {
            name: MANIFEST.to_owned(),
            problem: "an image has no config".to_owned(),
        });
    }
    let config_bytes = archive.document(&item.config)?;
    let config = manifest::parse_config(&config_bytes).map_err(unusable)?;
    let mut search = Search::new(wanted.clone());
    if !search.image(&config) {
        return Err(unusable(match search.next_document() {
            Err(error) => error,
            Ok(_) => ManifestError::NoImage,
        }));
    }
    let layers = layers(archive, item, &config, limits, &unusable)?;
    let written = Manifest::new(&config_bytes, &layers);
    let manifest = serde_json::to_vec(&written).map_err(|error| Problem::Malformed {
        name: MANIFEST.to_owned(),
        problem: error.to_string(),
    })?;
    Ok(ArchivedImage {
        names,
        bare_tags: Vec::new(),
        root: Digest::of(&manifest),
        manifest,
        config: config_bytes,
        layers,
    })
}

fn layers(
    archive: &Archive,
    item: &Item,
    config: &ImageConfiguration,
    limits: &Limits,
    unusable: &dyn Fn(ManifestError) -> Problem,
) -> Result<Vec<ArchivedLayer>, Problem> {
    let files = &item.layers;
    let diff_ids = config.rootfs().diff_ids();
    if files.len() != diff_ids.len() {
        return Err(unusable(ManifestError::LayerCount {
            layers: files.len(),
            diff_ids: diff_ids.len(),
        }));
    }
    let mut layers = Vec::with_capacity(files.len());
    for (name, diff_id) in files.iter().zip(diff_ids) {
        let diff_id: Digest = diff_id.parse().map_err(|source| {
            unusable(ManifestError::Digest {
                document: "config",
                of: "layer",
                source,
            })
        })?;
        let blob = blob(archive, name, diff_id)?;
        if blob.size > limits.layer_size {
            return Err(unusable(ManifestError::LayerSize {
                blob: blob.digest,
                size: blob.size,
                limit: limits.layer_size,
            }));
        }
        layers.push(ArchivedLayer {
            name: name.clone(),
            blob,
            diff_id,
            archive: None,
        });
    }
    Ok(layers)
}

/// Returns the descriptor of a layer's file. Docker's own are uncompressed, so that their digest
/// is the diff ID; other tools' may be compressed, and must be hashed.
fn blob(archive: &Archive, name: &str, diff_id: Digest) -> Result<Descriptor, Problem> {
    let member = archive.require(name)?;
    let read = |source| Problem::Read {
        name: printable(name),
        source,
    };
    let mut contents = member.contents;
    let mut head = Vec::new();
    (&mut contents)
        .take(MAGIC_LENGTH as u64)
        .read_to_end(&mut head)
        .map_err(read)?;
    let media_type = match Compression::detect(&head) {
        Ok(Compression::Gzip) => "application/vnd.oci.image.layer.v1.tar+gzip",
        Ok(Compression::Zstd) => "application/vnd.oci.image.layer.v1.tar+zstd",
        // The conversion reports any other compression.
        Ok(Compression::None) | Err(_) => {
            let media_type = "application/vnd.oci.image.layer.v1.tar";
            return Ok(descriptor(media_type, diff_id, member.size));
        }
    };
    let mut hasher = Hasher::new();
    hasher.update(&head);
    let mut buffer = vec![0; 256 << 10];
    while let Some(bytes) = piece(&mut contents, &mut buffer).map_err(read)? {
        hasher.update(bytes);
    }
    Ok(descriptor(media_type, hasher.finish(), member.size))
}

/// The manifest that such an image would have had. The order of the fields is fixed: the same
/// archive always gives the same digest.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest<'a> {
    schema_version: u32,
    media_type: &'static str,
    config: Descriptor,
    layers: Vec<&'a Descriptor>,
}

fn descriptor(media_type: &str, digest: Digest, size: u64) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest,
        size,
    }
}

impl<'a> Manifest<'a> {
    fn new(config: &[u8], layers: &'a [ArchivedLayer]) -> Self {
        Self {
            schema_version: 2,
            media_type: MANIFEST_TYPE,
            config: config_descriptor(config),
            layers: layers.iter().map(|layer| &layer.blob).collect(),
        }
    }
}
