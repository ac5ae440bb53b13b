//! Removes what nobody can ask for any more.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Store;
use super::census::{Census, ImageEntry, LayerEntry, disk_usage};
use super::durable;
use super::error::{Context, Error, Result};
use super::lock::{Lock, Mode};
use super::scratch::{Leftover, Scratch};
use micabox_oci::Digest;
use micabox_oci::reference::Reference;

/// What to prune.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PruneOptions {
    /// Images that have names too, unless a sandbox runs on them.
    pub all: bool,
    /// Only say what would go.
    pub dry_run: bool,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Names of images, sorted.
    pub references: Vec<Reference>,
    /// Manifest digests of images.
    pub images: Vec<Digest>,
    /// Diff IDs of layers.
    pub layers: Vec<Digest>,
    /// Machines that others would go on from: the next one like each boots again.
    pub templates: usize,
    /// What killed or failed imports left behind: directories, and starts of blobs from which
    /// the next pull would go on.
    pub leftovers: usize,
    /// Bytes of disk space freed.
    pub size: u64,
}

/// What became of an image after [`Store::remove`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Names that were taken away.
    pub references: Vec<Reference>,
    /// What went with the last name; `None` while the image has other names, or while
    /// something else uses the store: prune frees the space then.
    pub pruned: Option<Pruned>,
}

/// What a census finds to remove.
pub(super) struct Plan<'a> {
    images: BTreeMap<Digest, &'a ImageEntry>,
    layers: BTreeMap<Digest, &'a LayerEntry>,
}

impl<'a> Plan<'a> {
    /// What nobody holds. With leases that can't be read, nothing: they may be of anything.
    pub fn new(census: &'a Census, options: &PruneOptions) -> Self {
        let mut plan = Self {
            images: BTreeMap::new(),
            layers: BTreeMap::new(),
        };
        if !census.unreadable_leases.is_empty() {
            return plan;
        }
        plan.images = census
            .images
            .iter()
            .filter(|(_, image)| match options.all {
                true => image.sandboxes.is_empty(),
                false => !image.is_held(),
            })
            .map(|(digest, image)| (*digest, image))
            .collect();
        plan.add_layers(census, |_| true);
        plan
    }

    /// One image, and the layers that only it has.
    fn of_image(census: &'a Census, digest: &Digest) -> Self {
        let mut plan = Self {
            images: BTreeMap::new(),
            layers: BTreeMap::new(),
        };
        if let Some(image) = census.images.get(digest) {
            plan.images.insert(*digest, image);
            let layers = image.layers();
            plan.add_layers(census, |layer| layers.contains(layer));
        }
        plan
    }

    /// Adds the layers that no image has but those of the plan.
    fn add_layers(&mut self, census: &'a Census, candidate: impl Fn(&Digest) -> bool) {
        let images: BTreeSet<_> = self.images.keys().copied().collect();
        self.layers = census
            .layers
            .iter()
            .filter(|(digest, layer)| candidate(digest) && layer.images.is_subset(&images))
            .map(|(digest, layer)| (*digest, layer))
            .collect();
    }

    /// Disk space of it in bytes.
    pub fn size(&self) -> u64 {
        let images: u64 = self.images.values().map(|image| image.bytes).sum();
        images + self.layers.values().map(|layer| layer.bytes).sum::<u64>()
    }

    fn report(&self) -> Pruned {
        Pruned {
            references: self
                .images
                .values()
                .flat_map(|image| image.references.clone())
                .collect(),
            images: self.images.keys().copied().collect(),
            layers: self.layers.keys().copied().collect(),
            templates: 0,
            leftovers: 0,
            size: self.size(),
        }
    }

    /// Removes it. Killed anywhere on the way, it leaves names without an image, or layers
    /// without one, but never an image without its layers.
    fn carry_out(&self, store: &Store) -> Result<()> {
        for image in self.images.values() {
            for reference in &image.references {
                store.untag(reference)?;
            }
            remove_directory(store, &image.path)?;
        }
        for layer in self.layers.values() {
            // The record first: without it, the layer isn't there.
            for file in layer.files() {
                durable::remove_file(file)?;
            }
        }
        Ok(())
    }
}

/// Removes an image's directory at once, as far as anybody can see.
pub(super) fn remove_directory(store: &Store, path: &Path) -> Result<()> {
    let scratch = Scratch::new(&store.layout.tmp())?;
    fs::rename(path, scratch.path("removed")).context("remove", path)?;
    durable::sync_directory(&store.layout.images())
}

impl Store {
    /// Removes images that have no name and no sandbox, layers that no image has, all
    /// templates, and what killed processes left. Waits until nothing else uses the store.
    ///
    /// # Errors
    ///
    /// A sandbox's lease that can't be read: it may hold anything, so nothing is removed.
    pub fn prune(&self, options: &PruneOptions) -> Result<Pruned> {
        let _exclusive = self.exclusive()?;
        let mut census = Census::take(self)?;
        if let Some((_, error)) = census.unreadable_leases.pop() {
            return Err(error);
        }
        let plan = Plan::new(&census, options);
        let mut pruned = plan.report();
        pruned.references.sort_unstable();
        let leftovers = Leftover::find(&self.layout.tmp());
        pruned.leftovers = leftovers.len();
        for leftover in &leftovers {
            pruned.size += disk_usage(&leftover.directory)?;
        }
        let partials = self.partials()?;
        pruned.leftovers += partials.len();
        for partial in &partials {
            pruned.size += disk_usage(partial)?;
        }
        let templates = self.templates()?;
        pruned.templates = templates.len();
        for template in &templates {
            pruned.size += disk_usage(template)?;
        }
        if options.dry_run {
            return Ok(pruned);
        }
        plan.carry_out(self)?;
        for template in templates {
            remove_directory(self, &template)?;
        }
        for leftover in leftovers {
            leftover.remove()?;
        }
        for partial in &partials {
            durable::remove_file(partial)?;
        }
        // What the plan removed has made more of these than the census saw.
        let census = Census::take(self)?;
        for blob in &census.stray_blobs {
            durable::remove_file(blob)?;
        }
        self.remove_idle_locks()?;
        Ok(pruned)
    }

    /// The machines that others go on from, and what is left of such.
    fn templates(&self) -> Result<Vec<PathBuf>> {
        let directory = self.layout.templates();
        let names = durable::list(&directory)?;
        Ok(names.into_iter().map(|name| directory.join(name)).collect())
    }

    /// Takes away the name, or all names if `name` is a digest; with the last one goes the
    /// image, and layers that no other image has.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if the last name of an image is to go that a sandbox runs on.
    pub fn remove(&self, name: &str) -> Result<Removed> {
        let named = self.resolve(name)?;
        let Some(_exclusive) = Lock::try_take(&self.layout.store_lock(), Mode::Exclusive)? else {
            return self.remove_names_only(named);
        };
        let census = Census::take(self)?;
        let Some(image) = census.images.get(&named.manifest) else {
            // A name of an image that is gone.
            return match named.reference {
                Some(reference) => {
                    self.untag(&reference)?;
                    Ok(Removed {
                        references: vec![reference],
                        pruned: None,
                    })
                }
                None => Err(Error::NoImage {
                    name: name.to_owned(),
                }),
            };
        };
        let references = match named.reference {
            Some(reference) => vec![reference],
            None => image.references.clone(),
        };
        let last = image
            .references
            .iter()
            .all(|reference| references.contains(reference));
        if let (true, Some(sandbox)) = (last, image.sandboxes.first()) {
            return Err(Error::InUse {
                image: named.manifest,
                sandbox: sandbox.clone(),
            });
        }
        for reference in &references {
            self.untag(reference)?;
        }
        if !last || !census.unreadable_leases.is_empty() {
            return Ok(Removed {
                references,
                pruned: None,
            });
        }
        drop(census);
        let census = Census::take(self)?;
        let plan = Plan::of_image(&census, &named.manifest);
        plan.carry_out(self)?;
        Ok(Removed {
            references,
            pruned: Some(plan.report()),
        })
    }

    /// What can be done while others use the store: names only, as they hold nothing back
    /// from anybody who has found their image already.
    fn remove_names_only(&self, named: super::ImageName) -> Result<Removed> {
        let _shared = self.shared()?;
        let census = Census::take(self)?;
        let image = census.images.get(&named.manifest);
        let references = match (named.reference, image) {
            (Some(reference), _) => vec![reference],
            (None, Some(image)) => image.references.clone(),
            (None, None) => Vec::new(),
        };
        if let Some(image) = image
            && let Some(sandbox) = image.sandboxes.first()
            && image
                .references
                .iter()
                .all(|reference| references.contains(reference))
        {
            return Err(Error::InUse {
                image: named.manifest,
                sandbox: sandbox.clone(),
            });
        }
        for reference in &references {
            self.untag(reference)?;
        }
        Ok(Removed {
            references,
            pruned: None,
        })
    }

    /// Waits until nobody else uses the store, and keeps everybody out.
    pub(super) fn exclusive(&self) -> Result<Lock> {
        Lock::wait(&self.layout.store_lock(), Mode::Exclusive)
    }

    /// Removes the locks of single layers and images, which only holders of the shared lock
    /// wait on. The caller has the exclusive one.
    fn remove_idle_locks(&self) -> Result<()> {
        let locks = self.layout.locks();
        for name in durable::list(&locks)? {
            let path: PathBuf = locks.join(name);
            if path != self.layout.store_lock() {
                durable::remove_file(&path)?;
            }
        }
        Ok(())
    }
}
