//! What the store has, as a registry has it: manifests, configs, archives of layers, names.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use micabox_ground::lock;
use micabox_image::Store;
use micabox_image::export::rewrite;
use micabox_image::store::{self, ImageSummary, LayerArchive};
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
    /// Locked while the store is listed, which happens once for all who ask.
    list: Mutex<Option<List>>,
}

/// What was found before. Nothing is served from here without a look into the store.
#[derive(Debug, Default)]
struct Known {
    /// Digests of the store's manifests by those of the served ones, and by those of their configs.
    served: HashMap<Digest, Digest>,
    configs: HashMap<Digest, Digest>,
}

/// The images of the store, as they were a moment ago.
#[derive(Debug, Clone)]
struct List {
    since: Instant,
    images: Arc<Vec<ImageSummary>>,
}

/// How long a list is used: a client that asks for what is not there costs no more than others.
const MOMENT: Duration = Duration::from_secs(1);

impl Catalog {
    pub fn new(store: Store) -> Self {
        Self {
            store,
            known: Mutex::default(),
            list: Mutex::default(),
        }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns whether the store has an image of this name.
    pub fn has(&self, reference: &Reference) -> bool {
        self.store.image(&reference.to_string()).is_ok()
    }

    /// Returns the manifest of a name.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the store has no such image, or its archives can't be rebuilt.
    pub fn named(&self, reference: &Reference) -> Result<Published, Problem> {
        match self.store.image(&reference.to_string()) {
            Ok(image) => self.published(&image.manifest_digest),
            Err(store::Error::NoImage { .. }) => Err(Problem::new(
                Code::ManifestUnknown,
                format!("the store has no image {reference}"),
            )),
            Err(error) => Err(Problem::ours("the image can't be used", error.to_string())),
        }
    }

    /// Returns the manifest that is served under this digest.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: there is none.
    pub fn manifest(&self, digest: &Digest) -> Result<Published, Problem> {
        if let Some(published) = self.known_as(digest) {
            return Ok(published);
        }
        let list = self.list()?;
        // Listing has found all manifests that were there.
        if let Some(published) = self.known_as(digest) {
            return Ok(published);
        }
        let is_compressed = list.images.iter().any(|i| i.manifest_digest == *digest);
        let message = if is_compressed {
            "the store has this image, but not its layers as they were compressed: ask for a tag"
        } else {
            "the store has no manifest of this digest"
        };
        Err(Problem::new(Code::ManifestUnknown, message))
    }

    /// Returns the manifest of this digest, if it was served before and its image is still there.
    fn known_as(&self, digest: &Digest) -> Option<Published> {
        let manifest = self.known().served.get(digest).copied()?;
        let published = self.published(&manifest).ok()?;
        (published.digest == *digest).then_some(published)
    }

    /// Returns a config, if an image has it.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the store can't be read.
    pub fn config(&self, digest: &Digest) -> Result<Option<Bytes>, Problem> {
        let known = self.known().configs.get(digest).copied();
        if let Some(manifest) = known
            && let Some(config) = self.config_of(&manifest, digest)?
        {
            return Ok(Some(config));
        }
        let list = self.list()?;
        let mut found = list.images.iter().filter(|i| i.config_digest == *digest);
        found
            .find_map(|image| self.config_of(&image.manifest_digest, digest).transpose())
            .transpose()
    }

    /// Returns an image's config, if it has this digest.
    fn config_of(&self, manifest: &Digest, digest: &Digest) -> Result<Option<Bytes>, Problem> {
        match self.store.config(manifest) {
            Ok(config) if Digest::of(&config) == *digest => Ok(Some(config.into())),
            Ok(_) | Err(store::Error::NoImage { .. }) => Ok(None),
            Err(error) => Err(Problem::ours("the config can't be read", error.to_string())),
        }
    }

    /// Opens the archive of this digest, if the store can rebuild it.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the store can't be read, or is damaged.
    pub fn archive(&self, digest: &Digest) -> Result<Option<LayerArchive>, Problem> {
        let of_store =
            |error: store::Error| Problem::ours("the layer can't be read", error.to_string());
        let Some(layer) = self.store.layer(digest).map_err(of_store)? else {
            return Ok(None);
        };
        match self.store.archive(&layer) {
            Ok(archive) => Ok(Some(archive)),
            Err(store::Error::NoArchive { .. }) => Ok(None),
            Err(error) => Err(of_store(error)),
        }
    }

    /// Returns the tags of a name's repository, sorted.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: there is no such repository.
    pub fn tags(&self, of: &Reference) -> Result<Vec<String>, Problem> {
        let is_of = |name: &&Reference| {
            name.registry() == of.registry() && name.repository() == of.repository()
        };
        let list = self.list()?;
        let names = list.names().filter(is_of);
        let tags: BTreeSet<_> = names.filter_map(Reference::tag).collect();
        if tags.is_empty() {
            let message = format!(
                "the store has no image of {}/{}",
                of.registry(),
                of.repository()
            );
            return Err(Problem::new(Code::NameUnknown, message));
        }
        Ok(tags.into_iter().map(str::to_owned).collect())
    }

    /// Returns the repositories, sorted, as paths name them: those of `default` without their registry. Names of
    /// registries with a port can't be in a path.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the store can't be listed.
    pub fn repositories(&self, default: &str) -> Result<Vec<String>, Problem> {
        let list = self.list()?;
        let names = list.names().filter(|name| name.tag().is_some());
        let paths: BTreeSet<_> = names
            .filter_map(|name| match name.registry() {
                registry if registry == default => Some(name.repository().to_owned()),
                registry if registry.contains(':') => None,
                registry => Some(format!("{registry}/{}", name.repository())),
            })
            .collect();
        Ok(paths.into_iter().collect())
    }

    /// Returns the images of now, or of a moment ago, whose manifests are known then.
    fn list(&self) -> Result<List, Problem> {
        let mut kept = lock(&self.list);
        if let Some(list) = kept.as_ref().filter(|list| list.since.elapsed() < MOMENT) {
            return Ok(list.clone());
        }
        let since = Instant::now();
        let images = self.store.images();
        let unlisted =
            |error: store::Error| Problem::ours("the store can't be listed", error.to_string());
        let images = Arc::new(images.map_err(unlisted)?);
        let before = std::mem::take(&mut *self.known()).served;
        let before: HashMap<_, _> = before.into_iter().map(|(of, by)| (by, of)).collect();
        for image in images.iter() {
            match before.get(&image.manifest_digest) {
                Some(served) => self.note(*served, image.manifest_digest, image.config_digest),
                // One that can't be served has no manifest.
                None => drop(self.published(&image.manifest_digest)),
            }
        }
        let list = List { since, images };
        *kept = Some(list.clone());
        Ok(list)
    }

    fn note(&self, served: Digest, manifest: Digest, config: Digest) {
        let mut known = self.known();
        known.served.insert(served, manifest);
        known.configs.insert(config, manifest);
    }

    /// Returns the manifest that is served for an image of the store.
    fn published(&self, manifest: &Digest) -> Result<Published, Problem> {
        let of_store =
            |error: store::Error| Problem::ours("the image can't be read", error.to_string());
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
        self.note(digest, *manifest, image.config_digest);
        Ok(Published {
            bytes: bytes.into(),
            media_type,
            digest,
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

impl List {
    fn names(&self) -> impl Iterator<Item = &Reference> {
        self.images.iter().flat_map(|image| &image.references)
    }
}
