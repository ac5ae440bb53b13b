//! Computes the store's use of disk space.

use std::path::Path;

use serde::Serialize;

use super::Store;
use super::durable;
use super::error::Result;
use super::packed::read_list;
use super::packs;
use super::prune::{Plan, PruneOptions};
use super::reachability::{Reachability, disk_usage};
use micabox_oci::Digest;
use micabox_oci::reference::Reference;

/// The store's use of disk space. All sizes are in bytes on disk, so that holes don't count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Every image.
    pub images: Vec<ImageUsage>,
    /// Number of layers.
    pub layers: usize,
    /// Space of all layers: their files, and the packs.
    pub layers_size: u64,
    /// Number of layers that are packed, without an image of their own.
    pub packed_layers: usize,
    /// Number of layers of which only a part is here.
    pub lazy_layers: usize,
    /// Space of what is here of them.
    pub lazy_size: u64,
    /// Number of blobs that are kept as they came, and of indexes.
    pub kept_blobs: usize,
    /// Space of these.
    pub kept_blobs_size: u64,
    /// Number of disks and memories of snapshots and volumes that are packed.
    pub packed_files: usize,
    /// Space of their chunks, which layers may have as well.
    pub packed_files_size: u64,
    /// Space of the packs, with chunks of layers that are whole, and of none.
    pub packs_size: u64,
    /// Space that packing saves: that of the packed layers' images and of the packed files, as they were, less that of their
    /// chunks.
    pub saved_size: u64,
    /// Bytes of blocks that layers that are whole have in common, which the sizes of both have ([`Store::share_blocks`]).
    pub common_size: u64,
    /// Space of layers that more than one image has.
    pub shared_size: u64,
    /// Space of the images' own files: merged metadata and documents.
    pub metadata_size: u64,
    /// Space of templates.
    pub templates_size: u64,
    /// Space of imports that are running or were killed.
    pub temporary_size: u64,
    /// Space of the whole store.
    pub total_size: u64,
    /// What [`Store::prune`] would free.
    pub reclaimable_size: u64,
}

/// One image's use of disk space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageUsage {
    /// Digest of the manifest.
    pub manifest_digest: Digest,
    /// Its names, sorted.
    pub references: Vec<Reference>,
    /// Ids of the sandboxes that use it.
    pub sandboxes: Vec<String>,
    /// Its layers, its kept blobs and its own files.
    pub size: u64,
    /// The part of `size` that other images need, too.
    pub shared_size: u64,
    /// The space that removing only this image would free, but for chunks of packed layers that others have as well.
    pub unique_size: u64,
}

impl ImageUsage {
    /// Adds what so many images have.
    fn add(&mut self, bytes: u64, images: usize) {
        self.size += bytes;
        match images {
            1 => self.unique_size += bytes,
            _ => self.shared_size += bytes,
        }
    }
}

impl Store {
    /// Computes the use of disk space.
    ///
    /// # Errors
    ///
    /// [`super::Error::Io`] if the store can't be listed or locked.
    pub fn usage(&self) -> Result<Usage> {
        let _shared = self.shared()?;
        let mut reachability = Reachability::take(self)?;
        let counted = self.count_chunks(&mut reachability);
        let layers = reachability.layers.values();
        let lazy: Vec<_> = layers.filter(|layer| layer.is_lazy()).collect();
        let (lazy_layers, lazy_size) = (lazy.len(), lazy.iter().map(|layer| layer.bytes).sum());
        let packs_size = reachability.packs.values().map(|pack| pack.bytes).sum();
        let images: Vec<_> = reachability
            .images
            .iter()
            .map(|(digest, image)| {
                let mut usage = ImageUsage {
                    manifest_digest: *digest,
                    references: image.references.clone(),
                    sandboxes: image.sandboxes_alone(),
                    size: image.bytes,
                    shared_size: 0,
                    unique_size: image.bytes,
                };
                usage.references.sort_unstable();
                for layer in image
                    .layers()
                    .iter()
                    .filter_map(|layer| reachability.layers.get(layer))
                {
                    usage.add(layer.bytes + layer.chunks, layer.images.len());
                }
                for blob in reachability.kept.values() {
                    if blob.images.contains(digest) {
                        usage.add(blob.bytes, blob.images.len());
                    }
                }
                usage
            })
            .collect();
        let plan = Plan::new(&reachability, &PruneOptions::default());
        let sweep = plan.sweep(self, &reachability);
        let shared = reachability
            .layers
            .values()
            .filter(|layer| layer.images.len() > 1);
        let files = reachability.layers.values().map(|layer| layer.bytes);
        let temporary_size = contents_usage(&self.layout.tmp())?;
        let templates_size = contents_usage(&self.layout.templates())?;
        let views = plan.idle_views(&reachability)?;
        let views: Result<u64> = views.iter().map(|view| disk_usage(view)).sum();
        Ok(Usage {
            images,
            layers: reachability.layers.len(),
            layers_size: packs_size + files.sum::<u64>(),
            packed_layers: counted.layers,
            packed_files: counted.files,
            packed_files_size: counted.files_size,
            lazy_layers,
            lazy_size,
            kept_blobs: reachability.kept.len(),
            kept_blobs_size: reachability.kept.values().map(|blob| blob.bytes).sum(),
            packs_size,
            saved_size: counted.saved,
            common_size: self.shared_blocks(),
            shared_size: shared.map(|layer| layer.bytes + layer.chunks).sum(),
            metadata_size: reachability.images.values().map(|image| image.bytes).sum(),
            templates_size,
            temporary_size,
            total_size: disk_usage(&self.layout.layers())?
                + disk_usage(&self.layout.packs())?
                + disk_usage(&self.layout.images())?
                + disk_usage(&self.layout.blobs())?
                + disk_usage(&self.layout.refs())?
                + templates_size
                + temporary_size,
            reclaimable_size: plan.size()
                + plan.left_size(&reachability)?
                + sweep.size
                + views?
                + templates_size,
        })
    }
}

/// What is packed.
struct Counted {
    layers: usize,
    files: usize,
    /// Bytes of the files' chunks in packs.
    files_size: u64,
    /// Bytes that packing saves.
    saved: u64,
}

impl Store {
    /// Counts the chunks of packed layers and files.
    fn count_chunks(&self, reachability: &mut Reachability) -> Counted {
        let mut layers = Vec::new();
        for (diff_id, layer) in &mut reachability.layers {
            if layer.image.is_some() {
                continue;
            }
            if let Ok(Some(list)) = self.list(diff_id) {
                layer.chunks = packs::live_size([&list].into_iter());
                layers.push(list);
            }
        }
        let files = reachability.files.values().filter(|file| !file.is_whole);
        let files = files.filter_map(|file| read_list(&file.list).ok().flatten());
        let files: Vec<_> = files.collect();
        let all = || layers.iter().chain(&files);
        let whole: u64 = all().map(packs::unpacked_size).sum();
        Counted {
            saved: whole.saturating_sub(packs::live_size(all())),
            layers: layers.len(),
            files_size: packs::live_size(files.iter()),
            files: files.len(),
        }
    }
}

/// Returns the disk space of a directory's contents, without the directory, which always exists.
fn contents_usage(directory: &Path) -> Result<u64> {
    let names = durable::list(directory)?;
    let sizes = names.iter().map(|name| disk_usage(&directory.join(name)));
    sizes.sum()
}
