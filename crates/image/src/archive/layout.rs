//! Reads OCI image layouts: [`index.json`][spec] names manifests, and every blob is in a file
//! named by its digest. `docker save` writes a layout as well since version 25.
//!
//! [spec]: https://github.com/opencontainers/image-spec/blob/main/image-layout.md

use std::collections::HashMap;

use super::{Archive, ArchivedImage, ArchivedLayer, Found, Problem, docker};
use crate::manifest::{self, Document, Entry, LayerSource, ManifestError, Search};
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
    entries: Vec<Entry>,
}

/// Returns the images that the index names, possibly none.
pub(super) fn images(
    archive: &Archive,
    wanted: &Platform,
    limits: &Limits,
) -> Result<Found, Problem> {
    let index = archive.document(INDEX)?;
    let kind = Some("application/vnd.oci.image.index.v1+json");
    let index = match Document::parse(&index, kind).map_err(index_error)? {
        Document::Index(index) => index,
        Document::Manifest(_) => {
            return Err(Problem::Malformed {
                name: INDEX.to_owned(),
                problem: "it is a manifest".to_owned(),
            });
        }
    };
    let mut found = Found::default();
    if let Some(message) = index.unreadable {
        let document = "index";
        let problem = index_error(ManifestError::Malformed { document, message });
        found.leave_out(problem, false);
    }
    for group in groups(index.entries) {
        group.find(archive, wanted, limits, &mut found);
    }
    if found.images.iter().all(|image| image.names.is_empty()) {
        docker::add_names(archive, &mut found)?;
    }
    Ok(found)
}

fn index_error(source: ManifestError) -> Problem {
    Problem::Manifest {
        image: INDEX.to_owned(),
        source,
    }
}

fn groups(entries: Vec<Entry>) -> Vec<Group> {
    let same = |entry: &Entry| (name(entry), entry.platform(), entry.digest.clone());
    // Of an entry that is there twice, the last one counts.
    let last: HashMap<_, usize> = entries.iter().map(same).zip(0..).collect();
    let entries = entries.into_iter().enumerate();
    let entries = entries.filter(|(number, entry)| last.get(&same(entry)) == Some(number));
    let mut groups: Vec<Group> = Vec::new();
    let mut named: HashMap<(Option<String>, Option<String>), usize> = HashMap::new();
    for (_, entry) in entries {
        let (name, bare_tag) = name(&entry);
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
                    ..Group::default()
                });
                groups.len() - 1
            }
        };
        if let Some(group) = groups.get_mut(group) {
            group.entries.push(entry);
        }
    }
    // Attestations may have the annotations of the image that they belong to, but are never images.
    groups.retain(|group| {
        let is_image = |entry: &Entry| {
            let platform = entry.platform();
            platform.is_none_or(|platform| platform.os() != "unknown")
        };
        group.entries.iter().any(is_image)
    });
    groups
}

impl Group {
    /// Adds the group's image. Entries without a platform, and further ones for the same platform, are
    /// images of their own.
    fn find(&self, archive: &Archive, wanted: &Platform, limits: &Limits, found: &mut Found) {
        let is_named = self.name.is_some() || self.bare_tag.is_some();
        let image = |entries: &[Entry]| self.image(archive, entries, wanted, limits);
        let declared = |entry: &&Entry| entry.platform().is_some();
        let variants: Vec<Entry> = self.entries.iter().filter(declared).cloned().collect();
        let mut chosen = None;
        let mut problems = Vec::new();
        if !variants.is_empty() {
            match image(&variants) {
                Ok((image, at)) => chosen = variants.get(at).map(|entry| (entry, image)),
                Err(unread) => problems.push(unread),
            }
        }
        let platform = chosen.as_ref().and_then(|(entry, _)| entry.platform());
        let mut images = Vec::new();
        for entry in &self.entries {
            if let Some((_, image)) = chosen.take_if(|(chosen, _)| *chosen == entry) {
                images.push(image);
                continue;
            }
            let variant = entry.platform();
            if variant.is_some() && (platform.is_none() || variant != platform) {
                continue;
            }
            match image(std::slice::from_ref(entry)) {
                Ok((image, _)) => images.push(image),
                Err(unread) => problems.push(unread),
            }
        }
        if images.is_empty() {
            // What all of them have in common says more than the first.
            return match image(&self.entries) {
                Ok((image, _)) => found.add(image),
                Err(unread) => found.leave_out(self.problem(unread), is_named),
            };
        }
        images.into_iter().for_each(|image| found.add(image));
        for unread in problems {
            if !matches!(unread, Unread::Manifest(ManifestError::NoPlatform { .. })) {
                found.leave_out(self.problem(unread), is_named);
            }
        }
    }

    fn problem(&self, unread: Unread) -> Problem {
        match unread {
            Unread::Problem(problem) => problem,
            Unread::Manifest(source) => Problem::Manifest {
                image: self.called(),
                source,
            },
        }
    }

    /// Returns the image to which the first of `entries` leads that is for the platform, and the
    /// number of that entry.
    fn image(
        &self,
        archive: &Archive,
        entries: &[Entry],
        wanted: &Platform,
        limits: &Limits,
    ) -> Result<(ArchivedImage, usize), Unread> {
        let mut search = Search::new(wanted.clone());
        search.entries(entries)?;
        let mut missing = None;
        let mut from = 0;
        loop {
            let descriptor = match search.next_document() {
                Ok(descriptor) => descriptor,
                Err(error @ (ManifestError::NoImage | ManifestError::NoPlatform { .. })) => {
                    // What is missing may have been the image.
                    return Err(missing.map_or(error.into(), Unread::Problem));
                }
                Err(error) => return Err(error.into()),
            };
            // The search is depth first: other documents belong to the entry before them.
            if let Some(at) = entries.iter().position(|entry| *entry == descriptor) {
                from = at;
            }
            let (bytes, config, layers) = match read(archive, &descriptor, &mut search, limits) {
                Ok(Some(read)) => read,
                Ok(None) => continue,
                Err(Unread::Manifest(ManifestError::TooDeep)) => {
                    return Err(ManifestError::TooDeep.into());
                }
                Err(Unread::Manifest(error)) => {
                    search.pass_over(error);
                    continue;
                }
                // Tools leave out what wasn't asked for.
                Err(Unread::Problem(problem @ Problem::Missing { .. })) => {
                    missing.get_or_insert(problem);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let root = entries
                .get(from)
                .and_then(|entry| entry.digest.parse().ok());
            let image = ArchivedImage {
                names: self.name.clone().into_iter().collect(),
                bare_tags: self.bare_tag.iter().cloned().collect(),
                root: root.unwrap_or_else(|| Digest::of(&bytes)),
                manifest: bytes,
                config,
                layers: layers
                    .into_iter()
                    .map(|layer| ArchivedLayer {
                        name: blob_name(&layer.blob.digest),
                        blob: layer.blob,
                        diff_id: layer.diff_id,
                        archive: layer.archive,
                    })
                    .collect(),
            };
            return Ok((image, from));
        }
    }

    fn called(&self) -> String {
        match (&self.name, &self.bare_tag) {
            (Some(name), _) => name.familiar(),
            (None, Some(tag)) => format!("image `{tag}`"),
            (None, None) => "an image without a name".to_owned(),
        }
    }
}

/// Returns an entry's name, or its tag if it has only that.
fn name(entry: &Entry) -> (Option<Reference>, Option<String>) {
    if let Some(name) = entry
        .annotation(FULL_NAME)
        .and_then(|name| name.parse().ok())
    {
        return (Some(name), None);
    }
    let Some(text) = entry.annotation(REF_NAME) else {
        return (None, None);
    };
    // `latest` is a tag, though it could be a repository at the default registry.
    let is_full = text.contains(['/', ':', '@']);
    match text.parse().ok().filter(|_| is_full) {
        Some(name) => (Some(name), None),
        None => (None, Some(printable(text))),
    }
}

/// An image's manifest, config and layers.
type Image = (Vec<u8>, Vec<u8>, Vec<LayerSource>);

/// Reads a document of a search; `None` if it isn't the image that is wanted.
fn read(
    archive: &Archive,
    descriptor: &Entry,
    search: &mut Search,
    limits: &Limits,
) -> Result<Option<Image>, Unread> {
    let bytes = verified(archive, descriptor, "manifest")?;
    let manifest = match Document::parse(&bytes, Some(&descriptor.media_type))? {
        Document::Index(index) => {
            search.index(&index)?;
            return Ok(None);
        }
        Document::Manifest(manifest) => manifest,
    };
    let config_bytes = verified(archive, manifest::config_of(&manifest)?, "config")?;
    let config = manifest::parse_config(&config_bytes)?;
    if !search.image(&config) {
        return Ok(None);
    }
    let layers = manifest::layers_of(&manifest, &config, limits)?;
    Ok(Some((bytes, config_bytes, layers)))
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Why a document can't be used.
enum Unread {
    /// It can't be read, or isn't the one that its descriptor is of.
    Problem(Problem),
    /// It is the right one, and no image that can be used.
    Manifest(ManifestError),
}

impl From<Problem> for Unread {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<ManifestError> for Unread {
    fn from(error: ManifestError) -> Self {
        Self::Manifest(error)
    }
}

/// Returns a document, after checking it against its descriptor.
fn verified(archive: &Archive, descriptor: &Entry, what: &'static str) -> Result<Vec<u8>, Unread> {
    let expected = manifest::digest_of(descriptor, "index", what)?;
    let name = blob_name(&expected);
    let bytes = archive.document(&name)?;
    let actual = Digest::of(&bytes);
    if actual != expected {
        return Err(Problem::Digest { name, actual }.into());
    }
    let (declared, actual) = (descriptor.size, bytes.len() as u64);
    match declared.filter(|declared| *declared != actual) {
        None => Ok(bytes),
        Some(declared) => Err(Problem::Size {
            name,
            declared,
            actual,
        }
        .into()),
    }
}
