//! What the store has, as a registry has it: manifests, configs, blobs of layers, names.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use micabox_ground::lock;
use micabox_image::Store;
use micabox_image::export::{INDEX_TYPE, MANIFEST_TYPE, erofs_index, rewrite};
use micabox_image::manifest::{Document, digest_of};
use micabox_image::store::{self, Image, ImageSummary, LayerArchive};
use micabox_oci::{Descriptor, Digest, Reference};
use micabox_transfer::{NOTHING, start_order_artifact};

use crate::blob::Source;
use crate::converted::{Conversions, Converted, is_archives, is_converted};
use crate::kept::{as_it_came, has_all, is_kept, kept_index, kept_index_of};
use crate::problem::{Code, Problem};

/// A manifest as it is served.
#[derive(Debug)]
pub struct Published {
    pub bytes: Bytes,
    pub media_type: String,
    pub digest: Digest,
}

impl Published {
    /// Returns the digests of this manifest, or of this index and its manifests.
    pub fn manifests(&self) -> Vec<Digest> {
        let mut digests = vec![self.digest];
        if let Ok(Document::Index(index)) = Document::parse(&self.bytes, Some(&self.media_type)) {
            let entries = index.entries.iter();
            digests.extend(entries.filter_map(|entry| digest_of(entry, "index", "manifest").ok()));
        }
        digests
    }

    fn descriptor(&self) -> Descriptor {
        Descriptor {
            media_type: self.media_type.clone(),
            digest: self.digest,
            size: self.bytes.len() as u64,
        }
    }
}

/// The images of a store. Everything here blocks.
#[derive(Debug)]
pub struct Catalog {
    store: Store,
    /// Whether images of archives are served as EROFS images as well.
    with_erofs: bool,
    conversions: Arc<Conversions>,
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
    /// The same by the served manifests and indexes of EROFS images that were converted here.
    forms: HashMap<Digest, (Digest, Form)>,
    /// The same by blobs that came as EROFS images.
    blobs: HashMap<Digest, Digest>,
}

/// What is served of an image that was converted here.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// Its EROFS images.
    Erofs,
    /// The index of its archives and of these.
    Both,
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
    pub fn new(store: Store, with_erofs: bool) -> Self {
        Self {
            store,
            with_erofs,
            conversions: Arc::default(),
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

    /// Returns the manifest of a name, or the index of both forms of its image.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the store has no such image, or its layers can't be rebuilt.
    pub fn named(&self, reference: &Reference) -> Result<Published, Problem> {
        match self.store.image(&reference.to_string()) {
            Ok(image) => {
                let digest = image.manifest_digest;
                // Its registry may have an index under this name.
                if has_all(&self.store, &digest)
                    && let Some(index) = kept_index_of(&self.store, reference)
                {
                    // Its manifest is asked for next.
                    return self.published(&digest).map(|_| index);
                }
                if self.with_erofs && is_archives(&image) && !is_kept(&self.store, &digest) {
                    return self.form(&image, Form::Both);
                }
                self.published(&digest)
            }
            Err(store::Error::NoImage { .. }) => Err(Problem::new(
                Code::ManifestUnknown,
                format!("the store has no image {reference}"),
            )),
            Err(error) => Err(Problem::ours("the image can't be used", error.to_string())),
        }
    }

    /// Returns of a document and its manifests those whose signatures matter now: an index that was kept names images of
    /// other platforms too, whose signatures are asked for when they are pulled.
    pub fn served_of(&self, mut manifests: Vec<Digest>) -> Vec<Digest> {
        let document = manifests.first().copied();
        let is_kept = |digest: &Digest| matches!(self.store.kept_index(digest), Ok(Some(_)));
        if document.as_ref().is_some_and(is_kept) {
            manifests
                .retain(|digest| Some(*digest) == document || self.store.manifest(digest).is_ok());
        }
        manifests
    }

    /// Returns the manifest that is served under this digest.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: there is none.
    pub fn manifest(&self, digest: &Digest) -> Result<Published, Problem> {
        if has_all(&self.store, digest)
            && let Ok(published) = self.published(digest)
        {
            return Ok(published);
        }
        if let Some(index) = kept_index(&self.store, digest)? {
            return Ok(index);
        }
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
            "the store has this image, but not its layers as they were compressed: ask for a tag, or have blobs kept \
             where it is pulled"
        } else {
            "the store has no manifest of this digest"
        };
        Err(Problem::new(Code::ManifestUnknown, message))
    }

    /// Returns the manifest of this digest, if it was served before and its image is still there.
    fn known_as(&self, digest: &Digest) -> Option<Published> {
        let form = self.known().forms.get(digest).copied();
        let published = match form {
            Some((manifest, form)) => {
                let image = self.store.image_by_digest(&manifest).ok()?;
                self.form(&image, form).ok()?
            }
            None => {
                let manifest = self.known().served.get(digest).copied()?;
                self.published(&manifest).ok()?
            }
        };
        (published.digest == *digest).then_some(published)
    }

    /// Returns a config, if an image has it.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the store can't be read.
    pub fn config(&self, digest: &Digest) -> Result<Option<Bytes>, Problem> {
        if *digest == Digest::of(NOTHING) {
            // Of an order.
            return Ok(Some(Bytes::from_static(NOTHING)));
        }
        if let Some(config) = self.conversions.config(digest) {
            return Ok(Some(config.into()));
        }
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

    /// Opens the layer's blob of this digest, if it was kept or the store can rebuild it: an archive, or an EROFS image.
    ///
    /// # Errors
    ///
    /// A [`Problem`]: the store can't be read, or is damaged.
    pub fn blob(&self, digest: &Digest) -> Result<Option<Source>, Problem> {
        let of_store =
            |error: store::Error| Problem::ours("the blob can't be read", error.to_string());
        if let Some(kept) = self.store.kept_blob(digest).map_err(of_store)? {
            return Ok(Some(Source::Kept(kept)));
        }
        if let Some(archive) = self.archive(digest)? {
            return Ok(Some(Source::Archive(Box::new(archive))));
        }
        let mut blob = self.conversions.blob(digest);
        if blob.is_none()
            && let Some(manifest) = self.came_as(digest)?
        {
            let of_store =
                |error: store::Error| Problem::ours("the image can't be read", error.to_string());
            let image = self.store.image_by_digest(&manifest).map_err(of_store)?;
            self.conversions.of(&self.store, &image)?;
            blob = self.conversions.blob(digest);
        }
        let Some(blob) = blob else {
            return Ok(None);
        };
        match blob.reader(&self.store) {
            Ok(reader) => Ok(Some(Source::Erofs(Box::new(reader), 0))),
            Err(error) => Err(Problem::ours("the layer can't be read", error.to_string())),
        }
    }

    /// Returns the manifest of the image that came with this blob, as an EROFS image; none if there is none.
    fn came_as(&self, digest: &Digest) -> Result<Option<Digest>, Problem> {
        let known = || self.known().blobs.get(digest).copied();
        if let Some(manifest) = known() {
            return Ok(Some(manifest));
        }
        if self.known().configs.contains_key(digest) {
            return Ok(None);
        }
        self.list()?;
        Ok(known())
    }

    /// Returns the order of a start of the image with this manifest, as an artifact that is attached to it; none if the
    /// store has none.
    pub fn order(&self, manifest: &Digest) -> Option<Published> {
        let order = self.store.start_order(manifest)?;
        let artifact = start_order_artifact(&order);
        Some(Published {
            digest: Digest::of(&artifact.manifest),
            bytes: artifact.manifest.into(),
            media_type: artifact.media_type.to_owned(),
        })
    }

    fn archive(&self, digest: &Digest) -> Result<Option<LayerArchive>, Problem> {
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
        let now: HashSet<_> = images.iter().map(|i| i.manifest_digest).collect();
        let before = {
            let mut known = self.known();
            known.configs.clear();
            known.blobs.clear();
            known
                .forms
                .retain(|_, (manifest, _)| now.contains(manifest));
            std::mem::take(&mut known.served)
        };
        let before: HashMap<_, _> = before.into_iter().map(|(of, by)| (by, of)).collect();
        for image in images.iter() {
            match before.get(&image.manifest_digest) {
                // Of one that came as EROFS images, the blobs are to be noted as well.
                Some(served) if *served != image.manifest_digest => {
                    self.note(*served, image.manifest_digest, image.config_digest)
                }
                // One that can't be served has no manifest.
                _ => drop(self.published(&image.manifest_digest)),
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
        if has_all(&self.store, manifest) {
            self.note(*manifest, *manifest, image.config_digest);
            return Ok(as_it_came(original, *manifest, MANIFEST_TYPE));
        }
        if is_converted(&image) {
            return self.as_erofs(&image, original);
        }
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

    /// Returns the manifest of an image that came as EROFS images, which are served as they came.
    fn as_erofs(&self, image: &Image, original: Vec<u8>) -> Result<Published, Problem> {
        let invalid = |error: String| Problem::new(Code::ManifestUnknown, error);
        let document = Document::parse(&original, None).map_err(|e| invalid(e.to_string()))?;
        let digest = image.manifest_digest;
        if let Document::Manifest(manifest) = document {
            // Devices, and the metadata over them. A stack of the same layers has no such manifest.
            if manifest.layers.len() != image.layers.len() + 1 {
                let message = "it is a stack of EROFS images, which are only where they came from";
                return Err(invalid(message.to_owned()));
            }
            let mut known = self.known();
            for entry in &manifest.layers {
                if let Ok(blob) = digest_of(entry, "manifest", "layer") {
                    known.blobs.insert(blob, digest);
                }
            }
        }
        self.note(digest, digest, image.config_digest);
        Ok(as_it_came(original, digest, MANIFEST_TYPE))
    }

    /// Returns what is served of an image of archives that is converted.
    fn form(&self, image: &Image, form: Form) -> Result<Published, Problem> {
        let converted: Arc<Converted> = self.conversions.of(&self.store, image)?;
        let erofs = Published {
            bytes: converted.documents.manifest.clone().into(),
            media_type: MANIFEST_TYPE.to_owned(),
            digest: Digest::of(&converted.documents.manifest),
        };
        let published = match form {
            Form::Erofs => erofs,
            Form::Both => {
                let note = |digest, form| {
                    let manifest = image.manifest_digest;
                    self.known().forms.insert(digest, (manifest, form));
                };
                note(erofs.digest, Form::Erofs);
                let archives = self.published(&image.manifest_digest)?;
                let config = self.store.config(&image.manifest_digest);
                let config =
                    config.map_err(|e| Problem::ours("the config can't be read", e.to_string()))?;
                let index = erofs_index(Some(&archives.descriptor()), &erofs.descriptor(), &config)
                    .map_err(|error| Problem::new(Code::ManifestUnknown, error.to_string()))?;
                let digest = Digest::of(&index);
                note(digest, Form::Both);
                Published {
                    bytes: index.into(),
                    media_type: INDEX_TYPE.to_owned(),
                    digest,
                }
            }
        };
        Ok(published)
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
