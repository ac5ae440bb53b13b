//! Removes everything in the store that is not in use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use micabox_ground::locked::Mode;
use serde::Serialize;

use super::Store;
use super::durable;
use super::error::{Context, Error, Result};
use super::layout::VIEWS;
use super::lock::Lock;
use super::packs::Sweep;
use super::reachability::{ImageEntry, KeptEntry, LayerEntry, Reachability, disk_usage};
use super::scratch::{Leftover, Scratch};
use micabox_oci::Digest;
use micabox_oci::reference::Reference;

/// Options of a prune.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PruneOptions {
    /// Also remove images with names, unless a sandbox uses them.
    pub all: bool,
    /// Only report what would be removed.
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
    /// Digests of blobs that were kept as they came, and of indexes.
    pub blobs: Vec<Digest>,
    /// Templates: the next sandbox of each kind boots again.
    pub templates: usize,
    /// Trimmed views of images that no sandbox uses: the next start with such a view makes it again.
    pub views: usize,
    /// Leftovers of killed or failed imports: directories, starts of blobs from which the next pull would continue, and
    /// what was here of layers that are whole now.
    pub leftovers: usize,
    /// Why packs are left alone that may be of no use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// Bytes of disk space freed.
    pub size: u64,
}

/// Result of [`Store::remove`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Names that were removed.
    pub references: Vec<Reference>,
    /// What was removed with the last name; `None` while the image has other names, or while
    /// another process uses the store: prune frees the space then.
    pub pruned: Option<Pruned>,
}

/// What to remove, according to a reachability.
pub(super) struct Plan<'a> {
    images: BTreeMap<Digest, &'a ImageEntry>,
    layers: BTreeMap<Digest, &'a LayerEntry>,
    blobs: BTreeMap<Digest, &'a KeptEntry>,
    /// Whether lists of layers that are whole go as well.
    with_copies: bool,
}

impl<'a> Plan<'a> {
    /// Plans to remove everything that is not in use. With leases that can't be read, plans to
    /// remove nothing: they may hold any image.
    pub fn new(reachability: &'a Reachability, options: &PruneOptions) -> Self {
        let mut plan = Self {
            images: BTreeMap::new(),
            layers: BTreeMap::new(),
            blobs: BTreeMap::new(),
            with_copies: true,
        };
        if !reachability.unreadable_leases.is_empty() {
            return plan;
        }
        plan.images = reachability
            .images
            .iter()
            .filter(|(_, image)| {
                if options.all {
                    image.sandboxes.is_empty()
                } else {
                    !image.is_held()
                }
            })
            .map(|(digest, image)| (*digest, image))
            .collect();
        plan.add_layers(reachability, |_| true);
        plan.add_blobs(reachability, |_, _| true);
        plan
    }

    /// Plans to remove one image, and the layers and kept blobs that only this image has. `indexes` are those that led to it
    /// from names that it had.
    fn of_image(
        reachability: &'a Reachability,
        digest: &Digest,
        indexes: &BTreeSet<Digest>,
    ) -> Self {
        let mut plan = Self {
            images: BTreeMap::new(),
            layers: BTreeMap::new(),
            blobs: BTreeMap::new(),
            with_copies: false,
        };
        if let Some(image) = reachability.images.get(digest) {
            plan.images.insert(*digest, image);
            let layers = image.layers();
            plan.add_layers(reachability, |layer| layers.contains(layer));
            plan.add_blobs(reachability, |blob, kept| {
                kept.images.contains(digest) || indexes.contains(blob)
            });
        }
        plan
    }

    /// Adds the layers that only images of the plan have.
    fn add_layers(&mut self, reachability: &'a Reachability, candidate: impl Fn(&Digest) -> bool) {
        let images: BTreeSet<_> = self.images.keys().copied().collect();
        self.layers = reachability
            .layers
            .iter()
            .filter(|(digest, layer)| candidate(digest) && layer.images.is_subset(&images))
            .map(|(digest, layer)| (*digest, layer))
            .collect();
    }

    /// Adds the kept blobs that only images of the plan have.
    fn add_blobs(
        &mut self,
        reachability: &'a Reachability,
        candidate: impl Fn(&Digest, &KeptEntry) -> bool,
    ) {
        let is_needed = |blob: &KeptEntry| {
            blob.images
                .iter()
                .any(|image| !self.images.contains_key(image))
        };
        self.blobs = reachability
            .kept
            .iter()
            .filter(|(digest, blob)| candidate(digest, blob) && !is_needed(blob))
            .map(|(digest, blob)| (*digest, blob))
            .collect();
    }

    /// Returns the disk space of the plan's files in bytes.
    pub fn size(&self) -> u64 {
        let images: u64 = self.images.values().map(|image| image.bytes).sum();
        let blobs: u64 = self.blobs.values().map(|blob| blob.bytes).sum();
        images + blobs + self.layers.values().map(|layer| layer.bytes).sum::<u64>()
    }

    /// Plans the removal of chunks that only the plan's layers have. To carry it out takes the lock of packing.
    pub fn sweep(&self, store: &Store, reachability: &Reachability) -> Sweep {
        store.sweep(reachability, self.kept(reachability), self.with_copies)
    }

    /// Plans it, or nothing without the lock of packing.
    fn sweep_unless_packing(
        &self,
        store: &Store,
        reachability: &Reachability,
        packing: Option<&Lock>,
    ) -> Sweep {
        match packing {
            Some(_) => self.sweep(store, reachability),
            None => Sweep::nothing("layers are being packed".to_owned()),
        }
    }

    /// Returns the layers that stay.
    fn kept<'b>(
        &'b self,
        reachability: &'b Reachability,
    ) -> impl Iterator<Item = (&'b Digest, &'b LayerEntry)> + Clone {
        let layers = reachability.layers.iter();
        layers.filter(|(layer, _)| !self.layers.contains_key(layer))
    }

    /// Returns the layers that stay and are whole, with files of the time when only a part of them was here: a process was
    /// killed when it had just made them whole.
    fn left_lazy<'b>(
        &'b self,
        reachability: &'b Reachability,
    ) -> impl Iterator<Item = (&'b Digest, &'b LayerEntry)> {
        let kept = self.kept(reachability);
        kept.filter(|(_, layer)| layer.image.is_some() && !layer.lazy.is_empty())
    }

    /// Returns the disk space of these files in bytes.
    pub fn left_size(&self, reachability: &Reachability) -> Result<u64> {
        let left = self.left_lazy(reachability);
        let sizes = left.flat_map(|(_, layer)| &layer.lazy);
        sizes.map(|path| disk_usage(path)).sum()
    }

    /// Returns the trimmed views of images that stay and that no sandbox uses.
    pub fn idle_views(&self, reachability: &Reachability) -> Result<Vec<PathBuf>> {
        let mut views = Vec::new();
        for (digest, image) in &reachability.images {
            if image.sandboxes.is_empty() && !self.images.contains_key(digest) {
                let directory = image.path.join(VIEWS);
                let names = durable::list(&directory)?;
                views.extend(names.into_iter().map(|name| directory.join(name)));
            }
        }
        Ok(views)
    }

    fn report(&self, sweep: &Sweep) -> Pruned {
        Pruned {
            references: self
                .images
                .values()
                .flat_map(|image| image.references.clone())
                .collect(),
            images: self.images.keys().copied().collect(),
            layers: self.layers.keys().copied().collect(),
            blobs: self.blobs.keys().copied().collect(),
            templates: 0,
            views: 0,
            leftovers: 0,
            kept: sweep.kept.clone(),
            size: self.size() + sweep.size,
        }
    }

    /// Removes the plan's files. If it is killed at any point, there may be names without an
    /// image, or layers without one, but never an image without its layers.
    fn carry_out(
        &self,
        store: &Store,
        reachability: &Reachability,
        sweep: &mut Sweep,
    ) -> Result<()> {
        for image in self.images.values() {
            for reference in &image.references {
                store.untag(reference)?;
            }
            remove_directory(store, &image.path)?;
        }
        for layer in self.layers.values() {
            // The record first: without it, the layer doesn't exist.
            for file in layer.files() {
                durable::remove_file(file)?;
            }
        }
        for blob in self.blobs.values() {
            durable::remove_file(&blob.path)?;
        }
        let kept = self.kept(reachability).map(|(layer, _)| layer);
        store.carry_out_sweep(sweep, kept)
    }
}

/// Removes an image's directory atomically, as seen by other processes.
pub(super) fn remove_directory(store: &Store, path: &Path) -> Result<()> {
    let scratch = Scratch::new(&store.layout.tmp())?;
    fs::rename(path, scratch.path("removed")).context("remove", path)?;
    durable::sync_directory(&store.layout.images())
}

impl Store {
    /// Removes images without a name and a sandbox, layers and kept blobs without an image, all templates, trimmed
    /// views of images without a sandbox, and leftovers of killed processes. Waits until no other process uses the store.
    ///
    /// # Errors
    ///
    /// A sandbox's lease can't be read: it may hold any image, so nothing is removed.
    pub fn prune(&self, options: &PruneOptions) -> Result<Pruned> {
        let _exclusive = self.exclusive()?;
        let mut reachability = Reachability::take(self)?;
        if let Some((_, error)) = reachability.unreadable_leases.pop() {
            return Err(error);
        }
        let plan = Plan::new(&reachability, options);
        let packing = self.keep_from_packing()?;
        let mut sweep = plan.sweep_unless_packing(self, &reachability, packing.as_ref());
        let mut pruned = plan.report(&sweep);
        pruned.references.sort_unstable();
        let leftovers = Leftover::find(&self.layout.tmp());
        pruned.leftovers = leftovers.len();
        for leftover in &leftovers {
            pruned.size += disk_usage(&leftover.directory)?;
        }
        let left: Vec<_> = plan.left_lazy(&reachability).collect();
        pruned.leftovers += left.len();
        pruned.size += plan.left_size(&reachability)?;
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
        let views = plan.idle_views(&reachability)?;
        pruned.views = views.len();
        for view in &views {
            pruned.size += disk_usage(view)?;
        }
        if options.dry_run {
            return Ok(pruned);
        }
        let planned = sweep.size;
        plan.carry_out(self, &reachability, &mut sweep)?;
        pruned.size -= planned - sweep.size;
        pruned.kept = sweep.kept.take();
        for (diff_id, _) in left {
            self.remove_lazy(diff_id)?;
        }
        for view in views {
            remove_directory(self, &view)?;
        }
        for template in templates {
            remove_directory(self, &template)?;
        }
        for leftover in leftovers {
            leftover.remove()?;
        }
        for partial in &partials {
            durable::remove_file(partial)?;
        }
        // The plan's removals have left more stray blobs than the reachability saw.
        let reachability = Reachability::take(self)?;
        for blob in &reachability.stray_blobs {
            durable::remove_file(blob)?;
        }
        self.remove_idle_locks()?;
        Ok(pruned)
    }

    /// Returns the templates, including partial ones.
    fn templates(&self) -> Result<Vec<PathBuf>> {
        let directory = self.layout.templates();
        let names = durable::list(&directory)?;
        Ok(names.into_iter().map(|name| directory.join(name)).collect())
    }

    /// Removes the name, or all names if `name` is a digest. With the last name the image is
    /// removed, and layers that no other image has.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if a sandbox uses the image whose last name would be removed.
    pub fn remove(&self, name: &str) -> Result<Removed> {
        let named = self.resolve(name)?;
        let Some(_exclusive) = Lock::try_take(&self.layout.store_lock(), Mode::Exclusive)? else {
            return self.remove_names_only(named);
        };
        let reachability = Reachability::take(self)?;
        let Some(image) = reachability.images.get(&named.manifest) else {
            // A name of an image that is missing.
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
        if let (true, Some(sandbox)) = (last, image.user()) {
            return Err(Error::InUse {
                image: named.manifest,
                sandbox: sandbox.clone(),
            });
        }
        for reference in &references {
            self.untag(reference)?;
        }
        if !last || !reachability.unreadable_leases.is_empty() {
            return Ok(Removed {
                references,
                pruned: None,
            });
        }
        let blobs = reachability.kept.iter();
        let indexes = blobs.filter(|(_, blob)| blob.images.contains(&named.manifest));
        let indexes = indexes.map(|(digest, _)| *digest).collect();
        drop(reachability);
        let reachability = Reachability::take(self)?;
        let plan = Plan::of_image(&reachability, &named.manifest, &indexes);
        let packing = self.keep_from_packing()?;
        let mut sweep = plan.sweep_unless_packing(self, &reachability, packing.as_ref());
        let pruned = plan.report(&sweep);
        plan.carry_out(self, &reachability, &mut sweep)?;
        Ok(Removed {
            references,
            pruned: Some(pruned),
        })
    }

    /// Does the part of [`Store::remove`] that is safe while other processes use the store:
    /// removes only names, since a process that has found the image no longer needs them.
    fn remove_names_only(&self, named: super::ImageName) -> Result<Removed> {
        let _shared = self.shared()?;
        let reachability = Reachability::take(self)?;
        let image = reachability.images.get(&named.manifest);
        let references = match (named.reference, image) {
            (Some(reference), _) => vec![reference],
            (None, Some(image)) => image.references.clone(),
            (None, None) => Vec::new(),
        };
        if let Some(image) = image
            && let Some(sandbox) = image.user()
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

    /// Waits until no other process uses the store, and locks all others out.
    pub(super) fn exclusive(&self) -> Result<Lock> {
        Lock::wait(&self.layout.store_lock(), Mode::Exclusive)
    }

    /// Removes the locks of single layers and images, which only holders of the shared lock wait
    /// on: not that of packing, which comes before it. The caller must hold the exclusive one.
    fn remove_idle_locks(&self) -> Result<()> {
        let locks = self.layout.locks();
        for name in durable::list(&locks)? {
            let path: PathBuf = locks.join(name);
            if ![self.layout.store_lock(), self.layout.pack_lock()].contains(&path) {
                durable::remove_file(&path)?;
            }
        }
        Ok(())
    }
}
