//! Reads OCI image layouts: [`index.json`][spec] names manifests, and every blob is in a file
//! named by its digest. `docker save` writes a layout as well since version 25.
//!
//! [spec]: https://github.com/opencontainers/image-spec/blob/main/image-layout.md

use std::collections::HashMap;

use oci_spec::image::Descriptor;

use super::{Archive, ArchivedImage, ArchivedLayer, Problem, docker};
use crate::manifest::{self, Document, ManifestError, Search};
use crate::printable;
use crate::{Digest, Limits, Platform, Reference};

/// The file that makes a directory a layout.
pub(super) const MARKER: &str = "oci-layout";
/// The file that lists the images.
pub(super) const INDEX: &str = "index.json";

/// containerd's and Docker's annotation with an image's full name.
const FULL_NAME: &str = "io.containerd.image.name";
/// OCI's annotation, which may be a full name or just a tag.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Entries of `index.json` that are one image: the same one for several platforms, or a single
/// entry.
#[derive(Default)]
struct Group {
    name: Option<Reference>,
    bare_tag: Option<String>,
    entries: Vec<Descriptor>,
}

/// Returns the images that the index names, possibly none.
pub(super) fn images(
    archive: &Archive,
    wanted: &Platform,
    limits: &Limits,
) -> Result<Vec<ArchivedImage>, Problem> {
    let index = archive.document(INDEX)?;
    let index = match Document::parse(&index, None).map_err(index_error)? {
        Document::Index(index) => index,
        Document::Manifest(_) => {
            return Err(Problem::Malformed {
                name: INDEX.to_owned(),
                problem: "it is a manifest".to_owned(),
            });
        }
    };
    let mut images: Vec<ArchivedImage> = Vec::new();
    for group in groups(index.manifests()) {
        let image = image(archive, group, wanted, limits)?;
        // `docker save a:1 a:2` names one manifest twice.
        match images
            .iter_mut()
            .find(|other| other.manifest == image.manifest)
        {
            Some(same) => {
                same.names.extend(image.names);
                same.bare_tag = same.bare_tag.take().or(image.bare_tag);
            }
            None => images.push(image),
        }
    }
    if images.iter().all(|image| image.names.is_empty()) {
        docker::add_names(archive, &mut images)?;
    }
    Ok(images)
}

/// Turns an empty list of images into an error.
pub(super) fn or_no_image(images: Vec<ArchivedImage>) -> Result<Vec<ArchivedImage>, Problem> {
    if images.is_empty() {
        return Err(index_error(ManifestError::NoImage));
    }
    Ok(images)
}

fn index_error(source: ManifestError) -> Problem {
    Problem::Manifest {
        image: INDEX.to_owned(),
        source,
    }
}

fn groups(entries: &[Descriptor]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut named: HashMap<(Option<String>, Option<String>), usize> = HashMap::new();
    for entry in entries {
        let (name, bare_tag) = name(entry);
        // Unnamed entries are variants of one image if they have platforms; otherwise there is no
        // evidence that they belong together.
        let is_variant = name.is_some() || bare_tag.is_some() || entry.platform().is_some();
        let key = (name.as_ref().map(Reference::to_string), bare_tag.clone());
        let group = match is_variant.then(|| *named.entry(key).or_insert(groups.len())) {
            Some(at) if at < groups.len() => at,
            _ => {
                groups.push(Group {
                    name,
                    bare_tag,
                    entries: Vec::new(),
                });
                groups.len() - 1
            }
        };
        if let Some(group) = groups.get_mut(group) {
            group.entries.push(entry.clone());
        }
    }
    // Attestations may have the annotations of the image that they belong to, but are never images.
    groups.retain(|group| {
        let is_image = |entry: &Descriptor| {
            let platform = entry.platform().as_ref().map(Platform::from);
            platform.is_none_or(|platform| platform.os() != "unknown")
        };
        group.entries.iter().any(is_image)
    });
    groups
}

/// Returns an entry's name, or its tag if it has only that.
fn name(entry: &Descriptor) -> (Option<Reference>, Option<String>) {
    let annotations = entry.annotations().as_ref();
    let annotation = |key| {
        annotations
            .and_then(|all| all.get(key))
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    };
    if let Some(name) = annotation(FULL_NAME).and_then(|name| name.parse().ok()) {
        return (Some(name), None);
    }
    let Some(text) = annotation(REF_NAME) else {
        return (None, None);
    };
    // `latest` is a tag, though it could be a repository at the default registry.
    let is_full = text.contains(['/', ':', '@']);
    match text.parse().ok().filter(|_| is_full) {
        Some(name) => (Some(name), None),
        None => (None, Some(printable(text))),
    }
}

fn image(
    archive: &Archive,
    group: Group,
    wanted: &Platform,
    limits: &Limits,
) -> Result<ArchivedImage, Problem> {
    let called = match (&group.name, &group.bare_tag) {
        (Some(name), _) => name.familiar(),
        (None, Some(tag)) => format!("image `{tag}`"),
        (None, None) => "an image without a name".to_owned(),
    };
    let unusable = |source| Problem::Manifest {
        image: called.clone(),
        source,
    };
    let mut search = Search::new(wanted.clone());
    search.entries(&group.entries).map_err(unusable)?;
    loop {
        let descriptor = search.next_document().map_err(unusable)?;
        let bytes = verified(archive, &descriptor, "manifest").map_err(|e| e.of(&called))?;
        let media_type = descriptor.media_type().to_string();
        let manifest = match Document::parse(&bytes, Some(&media_type)).map_err(unusable)? {
            Document::Index(index) => {
                search.index(&index).map_err(unusable)?;
                continue;
            }
            Document::Manifest(manifest) => manifest,
        };
        let config = manifest::config_of(&manifest).map_err(unusable)?;
        let config_bytes = verified(archive, config, "config").map_err(|e| e.of(&called))?;
        let config = manifest::parse_config(&config_bytes).map_err(unusable)?;
        if !search.image(&config) {
            continue;
        }
        let layers = manifest::layers_of(&manifest, &config, limits).map_err(unusable)?;
        return Ok(ArchivedImage {
            names: group.name.into_iter().collect(),
            bare_tag: group.bare_tag,
            manifest: bytes,
            config: config_bytes,
            layers: layers
                .into_iter()
                .map(|layer| ArchivedLayer {
                    name: blob_name(&layer.blob.digest),
                    blob: layer.blob,
                    diff_id: layer.diff_id,
                })
                .collect(),
        });
    }
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Why a document can't be read.
enum Unread {
    Problem(Problem),
    Manifest(ManifestError),
}

impl Unread {
    fn of(self, image: &str) -> Problem {
        match self {
            Self::Problem(problem) => problem,
            Self::Manifest(source) => Problem::Manifest {
                image: image.to_owned(),
                source,
            },
        }
    }
}

/// Returns a document, after checking it against its descriptor.
fn verified(
    archive: &Archive,
    descriptor: &Descriptor,
    what: &'static str,
) -> Result<Vec<u8>, Unread> {
    let expected = manifest::digest_of(descriptor, "index", what).map_err(Unread::Manifest)?;
    let name = blob_name(&expected);
    let bytes = archive.document(&name).map_err(Unread::Problem)?;
    let actual = Digest::of(&bytes);
    if actual == expected {
        Ok(bytes)
    } else {
        Err(Unread::Problem(Problem::Digest { name, actual }))
    }
}
