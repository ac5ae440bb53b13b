//! Lists the store's contents and their references, for usage, prune and fsck.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Store;
use super::durable;
use super::error::{Context, Error, Result};
use super::image_record::{ImageRecord, MANIFEST};
use super::leases::HELD;
use crate::manifest::{Document, digest_of};
use micabox_oci::Digest;
use micabox_oci::reference::Reference;

/// All contents of the store. Stays correct only while the store's lock is held.
pub(super) struct Reachability {
    pub images: BTreeMap<Digest, ImageEntry>,
    pub layers: BTreeMap<Digest, LayerEntry>,
    pub packs: BTreeMap<Digest, PackEntry>,
    /// Blobs that are kept as they came.
    pub kept: BTreeMap<Digest, KeptEntry>,
    /// Files of sandboxes that have a list, by its path.
    pub files: BTreeMap<PathBuf, FileEntry>,
    /// Names without an image in the store, or whose file can't be read.
    pub dangling_tags: Vec<DanglingTag>,
    /// Leases that can't be read, by sandbox: the images that they hold are unknown.
    pub unreadable_leases: Vec<(String, Error)>,
    /// Leases of images that are missing, by sandbox.
    pub broken_leases: Vec<(String, Digest)>,
    /// Records of blobs whose layer is missing.
    pub stray_blobs: Vec<PathBuf>,
    /// Files and directories with names that the store doesn't use.
    pub strangers: Vec<PathBuf>,
}

/// A directory in `images`.
pub(super) struct ImageEntry {
    pub path: PathBuf,
    pub record: Result<ImageRecord>,
    pub references: Vec<Reference>,
    /// The sandboxes that use it, and processes that hold it for some ([`HELD`]).
    pub sandboxes: Vec<String>,
    /// Disk space of its own files in bytes.
    pub bytes: u64,
}

impl ImageEntry {
    /// Returns whether the image has a name or a sandbox.
    pub fn is_held(&self) -> bool {
        !self.references.is_empty() || !self.sandboxes.is_empty()
    }

    /// Returns a sandbox that uses it; a process that holds it for sandboxes only if there is nothing else.
    pub fn user(&self) -> Option<&String> {
        let users = self.sandboxes.iter();
        users.min_by_key(|name| name.starts_with(HELD))
    }

    /// Returns the sandboxes that use it, without processes that hold it for them.
    pub fn sandboxes_alone(&self) -> Vec<String> {
        let sandboxes = self.sandboxes.iter();
        let alone = sandboxes.filter(|name| !name.starts_with(HELD));
        alone.cloned().collect()
    }

    /// Returns its layers, without repetitions.
    pub fn layers(&self) -> BTreeSet<Digest> {
        let record = self.record.as_ref().ok();
        record
            .into_iter()
            .flat_map(|record| &record.layers)
            .map(|layer| layer.diff_id)
            .collect()
    }
}

/// A layer's files in `layers`.
#[derive(Default)]
pub(super) struct LayerEntry {
    pub image: Option<PathBuf>,
    pub record: Option<PathBuf>,
    pub recipe: Option<PathBuf>,
    pub list: Option<PathBuf>,
    /// Those of a layer of which only a part is here.
    pub lazy: Vec<PathBuf>,
    /// Disk space of all of them in bytes.
    pub bytes: u64,
    /// Bytes of its chunks in packs, which other layers may have as well, if it is packed; only [`Store::usage`] counts
    /// them.
    pub chunks: u64,
    /// The images that have it.
    pub images: BTreeSet<Digest>,
}

impl LayerEntry {
    /// Returns whether only a part of the layer is here.
    pub fn is_lazy(&self) -> bool {
        !self.lazy.is_empty()
            && self.record.is_some()
            && self.image.is_none()
            && self.list.is_none()
    }

    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let others = self.image.iter().chain(&self.recipe).chain(&self.list);
        self.record.iter().chain(others).chain(&self.lazy)
    }
}

/// A pack of layers' chunks.
pub(super) struct PackEntry {
    pub path: PathBuf,
    /// Its disk space in bytes.
    pub bytes: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// A blob that is kept as it came.
pub(super) struct KeptEntry {
    pub path: PathBuf,
    /// Its disk space in bytes.
    pub bytes: u64,
    /// The images whose manifest, or a name of which, has its digest.
    pub images: BTreeSet<Digest>,
}

/// A file of a sandbox that is packed, or was.
pub(super) struct FileEntry {
    /// The path of its list.
    pub list: PathBuf,
    /// Whether the file is there: then the list is of no use.
    pub is_whole: bool,
}

/// A name without an image.
pub(super) struct DanglingTag {
    pub path: PathBuf,
    /// The name and its missing image, or why it can't be read.
    pub tag: Result<(Reference, Digest)>,
}

impl Reachability {
    pub fn take(store: &Store) -> Result<Self> {
        let mut reachability = Self {
            images: BTreeMap::new(),
            layers: BTreeMap::new(),
            packs: BTreeMap::new(),
            kept: BTreeMap::new(),
            files: BTreeMap::new(),
            dangling_tags: Vec::new(),
            unreadable_leases: Vec::new(),
            broken_leases: Vec::new(),
            stray_blobs: Vec::new(),
            strangers: Vec::new(),
        };
        reachability.find_layers(store)?;
        for list in store.file_lists()? {
            let is_whole = list.with_extension("").exists();
            let entry = FileEntry {
                list: list.clone(),
                is_whole,
            };
            reachability.files.insert(list, entry);
        }
        reachability.find_images(store)?;
        reachability.find_blobs(store)?;
        for file in store.tag_files()? {
            match file.tag {
                Ok(tag) => match reachability.images.get_mut(&tag.manifest) {
                    Some(image) => {
                        image.references.push(tag.reference);
                        for index in &tag.indexes {
                            if let Some(kept) = reachability.kept.get_mut(index) {
                                kept.images.insert(tag.manifest);
                            }
                        }
                    }
                    None => reachability.dangling_tags.push(DanglingTag {
                        path: file.path,
                        tag: Ok((tag.reference, tag.manifest)),
                    }),
                },
                Err(error) => {
                    reachability.dangling_tags.push(DanglingTag {
                        path: file.path,
                        tag: Err(error),
                    });
                }
            }
        }
        for lease in store.leases()? {
            match lease.manifests {
                Ok(manifests) => {
                    for manifest in manifests {
                        let sandbox = lease.sandbox.clone();
                        match reachability.images.get_mut(&manifest) {
                            Some(image) => image.sandboxes.push(sandbox),
                            None => reachability.broken_leases.push((sandbox, manifest)),
                        }
                    }
                }
                Err(error) => reachability.unreadable_leases.push((lease.sandbox, error)),
            }
        }
        Ok(reachability)
    }

    fn find_layers(&mut self, store: &Store) -> Result<()> {
        for path in sharded_files(&store.layout.layers())? {
            let digest = path
                .file_stem()
                .and_then(|stem| Digest::from_hex(stem.to_str()?).ok());
            let extension = path.extension().and_then(|extension| extension.to_str());
            let Some(digest) = digest else {
                self.strangers.push(path);
                continue;
            };
            let bytes = disk_usage(&path)?;
            let record = store.layout.layer_record(&digest);
            match extension {
                Some("erofs") if path == store.layout.layer(&digest) => {
                    let entry = self.layers.entry(digest).or_default();
                    entry.bytes += bytes;
                    entry.image = Some(path);
                }
                Some("json") if path == record => {
                    let entry = self.layers.entry(digest).or_default();
                    entry.bytes += bytes;
                    entry.record = Some(path);
                }
                Some("recipe") if path == store.layout.recipe(&digest) => {
                    let entry = self.layers.entry(digest).or_default();
                    entry.bytes += bytes;
                    entry.recipe = Some(path);
                }
                Some("chunks") if path == store.layout.list(&digest) => {
                    let entry = self.layers.entry(digest).or_default();
                    entry.bytes += bytes;
                    entry.list = Some(path);
                }
                Some("lazy" | "blob" | "metadata") if path.parent() == record.parent() => {
                    let entry = self.layers.entry(digest).or_default();
                    entry.bytes += bytes;
                    entry.lazy.push(path);
                }
                _ => self.strangers.push(path),
            }
        }
        for path in sharded_files(&store.layout.packs())? {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let digest = stem.and_then(|stem| Digest::from_hex(stem).ok());
            match digest {
                Some(digest) if path == store.layout.pack(&digest) => {
                    let bytes = disk_usage(&path)?;
                    let length = fs::metadata(&path).context("look at", &path)?.len();
                    let entry = PackEntry {
                        path,
                        bytes,
                        length,
                    };
                    self.packs.insert(digest, entry);
                }
                _ => self.strangers.push(path),
            }
        }
        Ok(())
    }

    fn find_images(&mut self, store: &Store) -> Result<()> {
        for name in durable::list(&store.layout.images())? {
            let path = store.layout.images().join(&name);
            let Ok(digest) = Digest::from_hex(&name) else {
                self.strangers.push(path);
                continue;
            };
            let record = match store.image_record(&digest) {
                Ok(Some(record)) => Ok(record),
                Ok(None) => Err(Error::Damaged {
                    path: path.clone(),
                    problem: "it has no record".into(),
                }),
                Err(error) => Err(error),
            };
            let entry = ImageEntry {
                bytes: disk_usage(&path)?,
                path,
                record,
                references: Vec::new(),
                sandboxes: Vec::new(),
            };
            for layer in entry.layers() {
                if let Some(layer) = self.layers.get_mut(&layer) {
                    layer.images.insert(digest);
                }
            }
            self.images.insert(digest, entry);
        }
        Ok(())
    }

    fn find_blobs(&mut self, store: &Store) -> Result<()> {
        for path in sharded_files(&store.layout.blobs())? {
            let blob = path
                .file_stem()
                .and_then(|stem| Digest::from_hex(stem.to_str()?).ok());
            if let Some(blob) = blob.filter(|blob| path == store.layout.kept_blob(blob)) {
                let entry = KeptEntry {
                    bytes: disk_usage(&path)?,
                    path,
                    images: BTreeSet::new(),
                };
                self.kept.insert(blob, entry);
                continue;
            }
            let diff_id = blob.and_then(|blob| store.diff_id_of_blob(&blob).ok().flatten());
            if !diff_id.is_some_and(|diff_id| self.layers.contains_key(&diff_id)) {
                self.stray_blobs.push(path);
            }
        }
        if self.kept.is_empty() {
            return Ok(());
        }
        for (digest, image) in &self.images {
            let manifest = durable::read(&image.path.join(MANIFEST))?;
            // One that can't be read names none.
            let manifest = Document::parse(&manifest.unwrap_or_default(), None);
            let Ok(Document::Manifest(manifest)) = manifest else {
                continue;
            };
            for entry in &manifest.layers {
                let blob = digest_of(entry, "manifest", "layer").ok();
                if let Some(kept) = blob.and_then(|blob| self.kept.get_mut(&blob)) {
                    kept.images.insert(*digest);
                }
            }
        }
        Ok(())
    }
}

/// Returns the files two levels down: `<xx>/<digest>.<suffix>`.
fn sharded_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for shard in durable::list(directory)? {
        let shard = directory.join(shard);
        if shard.is_dir() {
            files.extend(
                durable::list(&shard)?
                    .into_iter()
                    .map(|name| shard.join(name)),
            );
        } else {
            files.push(shard);
        }
    }
    Ok(files)
}

/// Returns the disk space of a file, or of a directory with its contents, in bytes: holes take
/// none.
pub(super) fn disk_usage(path: &Path) -> Result<u64> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        // Removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error).context("look at", path),
    };
    let mut bytes = metadata.blocks() * 512;
    if metadata.is_dir() {
        for name in durable::list(path)? {
            bytes += disk_usage(&path.join(name))?;
        }
    }
    Ok(bytes)
}
