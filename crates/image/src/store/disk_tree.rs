//! dm-verity: the hash tree of an image's disk, by which a guest's kernel checks each block that it reads.
//!
//! The disk is `[fsmeta | layer | …]`, each file with its padding. Its tree is made by the first that asks for it, and
//! belongs to the image or to the trimmed view: it lies beside that one's fsmeta and goes with it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use micabox_erofs::{BLOCK_SIZE, ReadAt};
use micabox_ground::locked::Mode;
use micabox_verity::Tree;
use serde::{Deserialize, Serialize};
use tracing::info;

use super::Store;
use super::checksum::{Checksum, Hasher};
use super::durable;
use super::error::{Context, Error, Result};
use super::image::Image;
use super::image_record::FileRecord;
use super::images;
use super::layers::padded_blocks;
use super::lock::Lock;
use super::packed::LayerImage;
use super::scratch::Scratch;
use super::trimmed::{VIEW, ViewRecord};
use crate::identity;
use micabox_oci::Digest;

const TREE: &str = "disk.verity";
const RECORD: &str = "disk.verity.json";

/// Bytes that are read at a time.
const BUFFER: usize = 256 << 10;

/// The hash tree of an image's disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskTree {
    /// Its file: a superblock, as `veritysetup` writes it, and the levels, the root's first.
    pub path: PathBuf,
    /// Number of blocks of 4 KiB of the disk: all that it has.
    pub blocks: u64,
    /// Its root digest.
    pub root: Digest,
}

/// The JSON file beside a tree, which comes after it: without one there is no tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TreeRecord {
    /// The [`identity::FORMAT`] of the disk.
    format: u32,
    blocks: u64,
    root: Digest,
    /// Digest of the tree's file.
    file: Digest,
}

/// A file of a disk.
struct Part<'a> {
    path: &'a Path,
    image: LayerImage,
    record: FileRecord,
    /// The root digest that it has as an image of its own, if the image's manifest says.
    root: Option<Digest>,
}

impl Store {
    /// Returns the hash tree of an image's disk, which is made if the store does not have it. All of the disk is read
    /// then: each file has to have the checksum that it was published with, and a layer that was converted elsewhere the
    /// root digest that the image's manifest has.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] for a file that is not what it was, [`Error::Lazy`] if a layer is not all here, and errors of
    /// the disk.
    pub fn disk_tree(&self, image: &Image) -> Result<DiskTree> {
        let _shared = self.shared()?;
        let directory = image.fsmeta.parent().unwrap_or(&image.fsmeta);
        if let Some(tree) = usable(directory) {
            return Ok(tree);
        }
        let lock = self.layout.image_lock(&image.manifest_digest);
        let _lock = Lock::wait(&lock, Mode::Exclusive)?;
        // Another process may have made it meanwhile.
        match usable(directory) {
            Some(tree) => Ok(tree),
            None => self.make_tree(image, directory),
        }
    }

    fn make_tree(&self, image: &Image, directory: &Path) -> Result<DiskTree> {
        let begun = Instant::now();
        let mut tree = Tree::new(image.fsmeta_uuid());
        for part in self.parts(image)? {
            add(&mut tree, &part)?;
        }
        let blocks = tree.blocks() as u64;
        let (root, bytes) = tree.finish();
        let record = TreeRecord {
            format: identity::FORMAT,
            blocks,
            root: root.into(),
            file: Digest::of(&bytes),
        };
        let scratch = Scratch::new(&self.layout.tmp())?;
        durable::write(&scratch, TREE, &bytes)?;
        self.sealed(&scratch.path(TREE));
        durable::write_json(&scratch, RECORD, &record)?;
        durable::place(&scratch.path(TREE), &directory.join(TREE))?;
        durable::publish(&scratch.path(RECORD), &directory.join(RECORD))?;
        info!(
            image = %image.manifest_digest,
            blocks,
            ms = begun.elapsed().as_millis() as u64,
            "made the hash tree of the image's disk"
        );
        Ok(record.tree(directory))
    }

    /// Opens the files of an image's disk, in their order.
    fn parts<'a>(&self, image: &'a Image) -> Result<Vec<Part<'a>>> {
        let path = &*image.fsmeta;
        let fsmeta = Part {
            path,
            image: LayerImage::Whole(File::open(path).context("open", path)?),
            record: self.record_of_fsmeta(image)?,
            root: None,
        };
        let manifest = self.manifest(&image.manifest_digest)?;
        let sources = images::sources(&manifest, &image.config_digest, &image.config);
        let (sources, _) = sources.map_err(|error| Error::Unusable {
            image: image.manifest_digest,
            problem: error.to_string(),
        })?;
        let layers = image.layers.iter().zip(sources).map(|(layer, source)| {
            Ok(Part {
                path: &layer.path,
                image: self.open_layer(layer)?,
                record: FileRecord::from(&layer.record),
                root: source.verity_root,
            })
        });
        std::iter::once(Ok(fsmeta)).chain(layers).collect()
    }

    fn record_of_fsmeta(&self, image: &Image) -> Result<FileRecord> {
        if image.trim.is_empty() {
            return self.fsmeta_record(&image.manifest_digest);
        }
        let path = image.fsmeta.with_file_name(VIEW);
        let record: Option<ViewRecord> = durable::read_json(&path)?;
        let record = record.ok_or_else(|| Error::Damaged {
            path,
            problem: "the view has no record".to_owned(),
        })?;
        Ok(record.fsmeta)
    }
}

impl TreeRecord {
    fn tree(self, directory: &Path) -> DiskTree {
        DiskTree {
            path: directory.join(TREE),
            blocks: self.blocks,
            root: self.root,
        }
    }
}

/// Returns the tree in a directory, if it can be used. Others are replaced.
fn usable(directory: &Path) -> Option<DiskTree> {
    let record = durable::read_json::<TreeRecord>(&directory.join(RECORD));
    let record = record.ok().flatten()?;
    let is_there = record.format == identity::FORMAT && directory.join(TREE).exists();
    is_there.then(|| record.tree(directory))
}

/// Returns what is wrong with the tree in a directory, if there is one.
pub(super) fn problem(directory: &Path) -> Option<String> {
    let record = match durable::read_json::<TreeRecord>(&directory.join(RECORD)) {
        Ok(record) => record?,
        Err(error) => return Some(error.to_string()),
    };
    let bytes = match durable::read(&directory.join(TREE)) {
        Ok(bytes) => bytes?,
        Err(error) => return Some(error.to_string()),
    };
    let digest = Digest::of(&bytes);
    (digest != record.file).then(|| format!("its digest is {digest} instead of {}", record.file))
}

/// Removes the tree in a directory: the next that asks for one makes it.
pub(super) fn remove(directory: &Path) -> Result<()> {
    durable::remove_file(&directory.join(RECORD))?;
    durable::remove_file(&directory.join(TREE))
}

/// Returns the path by which findings name the tree in a directory.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(TREE)
}

/// Adds a file with its padding to a tree, and compares it with what is known of it.
fn add(tree: &mut Tree, part: &Part<'_>) -> Result<()> {
    let first = tree.blocks();
    let length = part.record.blocks * BLOCK_SIZE;
    let checksum = read(tree, &part.image, length).context("read", part.path)?;
    let damaged = |problem| Error::Damaged {
        path: part.path.to_owned(),
        problem,
    };
    let expected = part.record.checksum;
    if checksum != expected {
        let problem = format!("its checksum is {checksum} instead of {expected}");
        return Err(damaged(problem));
    }
    if let Some(expected) = part.root {
        let actual = tree.root_of(first..tree.blocks()).map(Digest::from);
        if actual != Some(expected) {
            let problem = format!(
                "its blocks have not the root digest {expected} that the image's manifest has"
            );
            return Err(damaged(problem));
        }
    }
    tree.zeros(padded_blocks(part.record.blocks) - part.record.blocks);
    Ok(())
}

/// Adds the first `length` bytes of a file to a tree. Returns their checksum.
fn read(tree: &mut Tree, image: &LayerImage, length: u64) -> io::Result<Checksum> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; BUFFER];
    let mut at = 0;
    while at < length {
        let data = image.next_data(at)?.min(length) / BLOCK_SIZE * BLOCK_SIZE;
        tree.zeros(data.saturating_sub(at) / BLOCK_SIZE);
        at = data;
        let most = (length - at).min(BUFFER as u64) as usize;
        let bytes = buffer.get_mut(..most).unwrap_or_default();
        image.read_exact_at(bytes, at)?;
        hasher.write(at, bytes)?;
        tree.update(bytes);
        at += most as u64;
    }
    Ok(hasher.finish())
}
