//! What the store has, as a registry has it: manifests, configs, archives of layers, names.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use micabox_image::Store;
use micabox_image::export::rewrite;
use micabox_image::store::{self, LayerArchive};
use micabox_oci::reference::DEFAULT_REGISTRY;
use micabox_oci::{Digest, Reference};

use crate::problem::{Code, Problem};

/// A manifest as it is served.
#[derive(Debug)]
pub struct Published {
    pub bytes: Bytes,
    pub media_type: String,
    pub digest: Digest,
}

/// The images of a store. Everything here blocks.
#[derive(Debug)]
pub struct Catalog {
    store: Store,
    known: Mutex<Known>,
}

/// What was found before. Nothing is served from here without a look into the store.
#[derive(Debug, Default)]
struct Known {
    /// Digests of served manifests by those of the store.
    served: HashMap<Digest, Digest>,
    /// Digests of the store's manifests by those of their configs.
    by_config: HashMap<Digest, Digest>,
}

impl Catalog {
    pub fn new(store: Store) -> Self {
        Self {
            store,
            known: Mutex::default(),
        }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the manifest of a tag.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the store has no such image, or its archives can't be rebuilt.
    pub fn tagged(&self, name: &Name<'_>, tag: &str) -> Result<Published, Problem> {
        for reference in name.references(tag)? {
            match self.store.image(&reference.to_string()) {
                Ok(image) => return self.published(&image.manifest_digest),
                Err(store::Error::NoImage { .. }) => {}
                Err(error) => return Err(Problem::ours("the image can't be used", &error)),
            }
        }
        let mut found = self.names()?;
        found.retain(|(reference, _)| {
            name.registry.is_none()
                && reference.repository() == name.path
                && reference.tag() == Some(tag)
        });
        match &found[..] {
            [(_, manifest)] => self.published(manifest),
            [] => Err(Problem::new(
                Code::ManifestUnknown,
                format!("the store has no image {}:{tag}", name.path),
            )),
            several => {
                let names: Vec<_> = several.iter().map(|(name, _)| name.to_string()).collect();
                let names = names.join(", ");
                let message =
                    format!("several images have this name, so say the registry: {names}");
                Err(Problem::new(Code::ManifestUnknown, message))
            }
        }
    }

    /// Returns the manifest that is served under this digest.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: there is none.
    pub fn manifest(&self, digest: &Digest) -> Result<Published, Problem> {
        let of_store = |error| Problem::ours("the store can't be listed", &error);
        let images = self.store.images().map_err(of_store)?;
        let mut known = std::mem::take(&mut self.known().served);
        known.retain(|manifest, _| images.iter().any(|i| i.manifest_digest == *manifest));
        self.known().served.extend(known.clone());
        let mut is_compressed = false;
        for image in images {
            let manifest = image.manifest_digest;
            is_compressed |= manifest == *digest;
            if known.get(&manifest).is_some_and(|served| served != digest) {
                continue;
            }
            if let Ok(published) = self.published(&manifest)
                && published.digest == *digest
            {
                return Ok(published);
            }
        }
        Err(Problem::new(
            Code::ManifestUnknown,
            match is_compressed {
                true => {
                    "the store has this image, but not its layers as they were compressed: ask for a tag"
                }
                false => "the store has no manifest of this digest",
            },
        ))
    }

    /// Returns a config, if an image has it.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the store can't be read.
    pub fn config(&self, digest: &Digest) -> Result<Option<Bytes>, Problem> {
        let known = self.known().by_config.get(digest).copied();
        let of_store = |error| Problem::ours("the config can't be read", &error);
        let manifest = match known {
            Some(manifest) => Some(manifest),
            None => {
                let mut images = self.store.images().map_err(of_store)?.into_iter();
                let found = images.find(|image| image.config_digest == *digest);
                found.map(|image| image.manifest_digest)
            }
        };
        let Some(manifest) = manifest else {
            return Ok(None);
        };
        match self.store.config(&manifest) {
            Ok(config) if Digest::of(&config) == *digest => Ok(Some(config.into())),
            Ok(_) | Err(store::Error::NoImage { .. }) => Ok(None),
            Err(error) => Err(of_store(error)),
        }
    }

    /// Opens the archive of this digest, if the store can rebuild it.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the store can't be read, or is damaged.
    pub fn archive(&self, digest: &Digest) -> Result<Option<LayerArchive>, Problem> {
        let of_store = |error| Problem::ours("the layer can't be read", &error);
        let Some(layer) = self.store.layer(digest).map_err(of_store)? else {
            return Ok(None);
        };
        match self.store.archive(&layer) {
            Ok(archive) => Ok(Some(archive)),
            Err(store::Error::NoArchive { .. }) => Ok(None),
            Err(error) => Err(of_store(error)),
        }
    }

    /// Returns the tags of a repository, sorted.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: there is no such repository.
    pub fn tags(&self, name: &Name<'_>) -> Result<Vec<String>, Problem> {
        let first = name.references("latest")?;
        let mut names = self.names()?;
        let of_first: BTreeSet<_> = first.iter().filter_map(repository).collect();
        let is_first = |reference: &Reference| {
            repository(reference).is_some_and(|repository| of_first.contains(&repository))
        };
        if names.iter().any(|(reference, _)| is_first(reference)) {
            names.retain(|(reference, _)| is_first(reference));
        } else {
            names.retain(|(reference, _)| {
                name.registry.is_none() && reference.repository() == name.path
            });
        }
        if names.is_empty() {
            let message = format!("the store has no image of {}", name.path);
            return Err(Problem::new(Code::NameUnknown, message));
        }
        let tags: BTreeSet<_> = names
            .iter()
            .filter_map(|(reference, _)| reference.tag())
            .collect();
        Ok(tags.into_iter().map(str::to_owned).collect())
    }

    /// Returns the repositories, sorted, under names that paths may have.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the store can't be listed.
    pub fn repositories(&self) -> Result<Vec<String>, Problem> {
        let names: BTreeSet<_> = self
            .names()?
            .iter()
            .map(|(reference, _)| match reference.registry() {
                // No name of a repository has a colon.
                registry if registry == DEFAULT_REGISTRY || registry.contains(':') => {
                    reference.repository().to_owned()
                }
                registry => format!("{registry}/{}", reference.repository()),
            })
            .collect();
        Ok(names.into_iter().collect())
    }

    /// Returns all names that have a tag, each with its image's manifest.
    fn names(&self) -> Result<Vec<(Reference, Digest)>, Problem> {
        let of_store = |error| Problem::ours("the store can't be listed", &error);
        let images = self.store.images().map_err(of_store)?.into_iter();
        let names = images.flat_map(|image| {
            let manifest = image.manifest_digest;
            let tagged = |name: &Reference| name.tag().is_some();
            let names = image.references.into_iter().filter(tagged);
            names.map(move |name| (name, manifest)).collect::<Vec<_>>()
        });
        Ok(names.collect())
    }

    /// Returns the manifest that is served for an image of the store.
    fn published(&self, manifest: &Digest) -> Result<Published, Problem> {
        let of_store = |error| Problem::ours("the image can't be read", &error);
        let image = self.store.image_by_digest(manifest).map_err(of_store)?;
        let original = self.store.manifest(manifest).map_err(of_store)?;
        let config = self.store.config(manifest).map_err(of_store)?;
        if let Some(layer) = image.layers.iter().find(|l| l.record.recipe.is_none()) {
            let message = format!(
                "layer {} came as an EROFS image, not as an archive, and is only where it came from",
                layer.diff_id
            );
            return Err(Problem::new(Code::ManifestUnknown, message));
        }
        let layers: Vec<_> = image.layers.iter().map(|l| l.uncompressed()).collect();
        let (bytes, media_type) = rewrite(&original, &config, &layers)
            .map_err(|error| Problem::new(Code::ManifestUnknown, error.to_string()))?;
        let digest = Digest::of(&bytes);
        let mut known = self.known();
        known.served.insert(*manifest, digest);
        known.by_config.insert(image.config_digest, *manifest);
        Ok(Published {
            bytes: bytes.into(),
            media_type,
            digest,
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn repository(reference: &Reference) -> Option<(String, String)> {
    Some((
        reference.registry().to_owned(),
        reference.repository().to_owned(),
    ))
}

/// A repository as a client names it.
#[derive(Debug, Clone, Copy)]
pub struct Name<'a> {
    /// The registry that this one mirrors for the client (`ns`, containerd's convention).
    pub registry: Option<&'a str>,
    /// The path, which may begin with a registry.
    pub path: &'a str,
}

impl Name<'_> {
    /// Returns the references that it may mean, the likeliest first.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: it is no name, or the tag is none.
    pub fn references(&self, tag: &str) -> Result<Vec<Reference>, Problem> {
        let parse = |text: String| text.parse::<Reference>();
        let path = self.path;
        let found: Vec<_> = match self.registry {
            Some(registry) => vec![parse(format!("{registry}/{path}:{tag}"))],
            // `library/box` and `box` are the default registry's, `host.name/box` is another's or, as a path, that one's.
            None => vec![
                parse(format!("{path}:{tag}")),
                parse(format!("{DEFAULT_REGISTRY}/{path}:{tag}")),
            ],
        };
        let mut references = Vec::new();
        let mut wrong = None;
        for parsed in found {
            match parsed {
                Ok(reference) if !references.contains(&reference) => references.push(reference),
                Ok(_) => {}
                Err(error) => wrong = wrong.or(Some(error)),
            }
        }
        match (references.is_empty(), wrong) {
            (true, Some(error)) => Err(Problem::new(Code::NameInvalid, error.to_string())),
            _ => Ok(references),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_mean_the_default_registry_or_another() {
        let means = |registry, path| -> Vec<String> {
            let name = Name { registry, path };
            let found = name.references("1").unwrap();
            found.iter().map(ToString::to_string).collect()
        };
        assert_eq!(means(None, "box"), ["docker.io/library/box:1"]);
        assert_eq!(means(None, "library/box"), ["docker.io/library/box:1"]);
        assert_eq!(means(None, "docker.io/team/box")[0], "docker.io/team/box:1");
        assert_eq!(
            means(None, "ghcr.io/team/box"),
            ["ghcr.io/team/box:1", "docker.io/ghcr.io/team/box:1"]
        );
        assert_eq!(means(Some("ghcr.io"), "team/box"), ["ghcr.io/team/box:1"]);
        assert_eq!(
            means(Some("docker.io"), "library/box"),
            ["docker.io/library/box:1"]
        );
        let name = |registry, path| Name { registry, path };
        for (name, tag) in [
            (name(None, "UPPER"), "1"),
            (name(None, "a//b"), "1"),
            (name(None, "a"), "-"),
            (name(Some("a b"), "box"), "1"),
            (name(None, "a@sha256"), "1"),
        ] {
            let problem = name.references(tag).unwrap_err();
            assert_eq!(problem.code, Code::NameInvalid, "{name:?}");
        }
    }
}
