//! Checks everything in the store against what it should be, and removes what is not.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use micabox_erofs::{BLOCK_SIZE, Cached, Reader, check};
use serde::Serialize;

use super::Store;
use super::census::{Census, ImageEntry, LayerEntry};
use super::checksum::Checksum;
use super::durable;
use super::error::{Context, Error, Result};
use super::images::{self, CONFIG, FIXUP, FSMETA, FileRecord, MANIFEST, VMDK};
use super::layers::{LayerRecord, RecipeRecord, padded_blocks};
use super::prune::remove_directory;
use super::scratch::Leftover;
use crate::identity;
use micabox_oci::{Digest, HashingWriter};

/// How many structural problems of one image are told.
const PROBLEMS_MAX: usize = 10;

/// What [`Store::fsck`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FsckReport {
    /// Layers that were read whole.
    pub layers: usize,
    /// Images that were checked.
    pub images: usize,
    /// Bytes that were hashed.
    pub bytes: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// What killed imports left behind: harmless, invisible, and removed by whatever runs
    /// next. Removed here if asked to repair.
    pub leftovers: usize,
    /// Files that aren't the store's, relative to its root. They are left alone.
    pub strangers: Vec<PathBuf>,
}

impl FsckReport {
    /// Whether nothing is wrong, or nothing any more.
    pub fn is_clean(&self) -> bool {
        self.findings.iter().all(|finding| finding.repaired)
    }
}

/// Something wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The file or directory, relative to the store's root.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
    /// What a repair does, or did.
    pub repair: Repair,
    /// Whether it was done.
    pub repaired: bool,
}

/// How something wrong is put right. Nothing is ever mended in place: what is bad goes, and
/// the next pull or load brings it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repair {
    /// Removes the layer; images that have it go too.
    RemoveLayer,
    /// Removes the image and its names.
    RemoveImage,
    /// Removes the name.
    RemoveName,
    /// Removes the sandbox's hold on an image.
    RemoveLease,
}

impl std::fmt::Display for Repair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::RemoveLayer => "remove the layer, so that the next pull fetches it again",
            Self::RemoveImage => "remove the image and its names, so that it can be pulled again",
            Self::RemoveName => "remove the name",
            Self::RemoveLease => "remove the sandbox's hold on its image",
        })
    }
}

/// How to check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsckOptions {
    /// Remove what is bad, and wait for that until nothing else uses the store. Without,
    /// nothing is changed.
    pub repair: bool,
    /// Make every layer's archive again and hash it: takes as long as importing them took.
    pub archives: bool,
}

impl Store {
    /// [`Store::fsck_with`] all but `archives`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the store itself can't be listed or locked. What is damaged is in the
    /// report.
    pub fn fsck(&self, repair: bool) -> Result<FsckReport> {
        self.fsck_with(&FsckOptions {
            repair,
            ..FsckOptions::default()
        })
    }

    /// Reads everything: hashes every layer and its recipe and checks its structure, every
    /// image's documents, merged metadata and layers, every name and lease.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the store itself can't be listed or locked. What is damaged is in the
    /// report.
    pub fn fsck_with(&self, options: &FsckOptions) -> Result<FsckReport> {
        let repair = options.repair;
        let _lock = match repair {
            true => self.exclusive()?,
            false => self.shared()?,
        };
        let census = Census::take(self)?;
        let mut fsck = Fsck {
            store: self,
            repair,
            archives: options.archives,
            report: FsckReport::default(),
            sound_layers: BTreeSet::new(),
        };
        fsck.check(&census)?;
        Ok(fsck.report)
    }
}

struct Fsck<'a> {
    store: &'a Store,
    repair: bool,
    archives: bool,
    report: FsckReport,
    sound_layers: BTreeSet<Digest>,
}

impl Fsck<'_> {
    fn check(&mut self, census: &Census) -> Result<()> {
        let leftovers = Leftover::find(&self.store.layout.tmp());
        self.report.leftovers = leftovers.len();
        if self.repair {
            leftovers.into_iter().try_for_each(Leftover::remove)?;
        }
        for (diff_id, layer) in &census.layers {
            self.layer(diff_id, layer)?;
        }
        for (digest, image) in &census.images {
            self.image(digest, image)?;
        }
        for dangling in &census.dangling_tags {
            let problem = match &dangling.tag {
                Ok((reference, digest)) => {
                    format!("the name `{reference}` means image {digest}, which isn't here")
                }
                Err(error) => error.to_string(),
            };
            self.finding(&dangling.path, problem, Repair::RemoveName, |_| {
                durable::remove_file(&dangling.path)
            })?;
        }
        let broken = census.broken_leases.iter().map(|(sandbox, image)| {
            (
                sandbox,
                format!("sandbox `{sandbox}` runs on image {image}, which isn't here"),
            )
        });
        let unreadable = census.unreadable_leases.iter();
        let unreadable = unreadable.map(|(sandbox, error)| (sandbox, error.to_string()));
        for (sandbox, problem) in broken.chain(unreadable) {
            let path = self.store.lease_path(sandbox)?;
            self.finding(&path, problem, Repair::RemoveLease, |_| {
                durable::remove_file(&path)
            })?;
        }
        if self.repair {
            census
                .stray_blobs
                .iter()
                .try_for_each(|blob| durable::remove_file(blob))?;
        }
        self.report.strangers = census
            .strangers
            .iter()
            .map(|path| self.relative(path))
            .collect();
        Ok(())
    }

    fn layer(&mut self, diff_id: &Digest, layer: &LayerEntry) -> Result<()> {
        let (problem, path) = match (&layer.image, &layer.record) {
            (_, None) => {
                // Published halfway, or removed halfway: without a record it isn't there.
                self.report.leftovers += 1;
                return match self.repair {
                    true => layer
                        .files()
                        .try_for_each(|file| durable::remove_file(file)),
                    false => Ok(()),
                };
            }
            (None, Some(record)) => ("its image is missing".to_owned(), record),
            (Some(image), Some(record)) => {
                self.report.layers += 1;
                match self.layer_problem(diff_id, image, record) {
                    Ok(()) => {
                        self.sound_layers.insert(*diff_id);
                        return Ok(());
                    }
                    Err(problem) => (problem, image),
                }
            }
        };
        self.finding(path, problem, Repair::RemoveLayer, |_| {
            layer
                .files()
                .try_for_each(|file| durable::remove_file(file))
        })
    }

    fn layer_problem(&mut self, diff_id: &Digest, image: &Path, record: &Path) -> Found {
        let record: LayerRecord = durable::read_json(record)
            .map_err(|error| error.to_string())?
            .ok_or("its record is missing")?;
        check_format(record.format)?;
        if record.diff_id != *diff_id {
            return Err(format!("its record is of layer {}", record.diff_id));
        }
        let file = FileRecord {
            blocks: record.blocks,
            checksum: record.checksum,
        };
        self.image_file(image, &file, identity::layer_uuid(diff_id))?;
        self.recipe(diff_id, record.recipe.as_ref())
    }

    /// Checks how a layer's archive is made again, or even makes it.
    fn recipe(&mut self, diff_id: &Digest, record: Option<&RecipeRecord>) -> Found {
        let Some(record) = record else {
            return Ok(());
        };
        let hashed = File::open(self.store.layout.recipe(diff_id)).and_then(|mut file| {
            let mut out = HashingWriter::new(io::sink());
            io::copy(&mut file, &mut out)?;
            Ok(out.finish())
        });
        let (_, actual, size) = hashed.map_err(|error| format!("its recipe: {error}"))?;
        self.report.bytes += size;
        if actual != record.digest {
            return Err(format!(
                "its recipe's digest is {actual} instead of {}",
                record.digest
            ));
        }
        if !self.archives {
            return Ok(());
        }
        let layer = self.store.layer(diff_id).map_err(|e| e.to_string())?;
        let layer = layer.ok_or("it was removed meanwhile")?;
        let mut archive = self.store.archive(&layer).map_err(|e| e.to_string())?;
        self.report.bytes += io::copy(&mut archive, &mut io::sink()).map_err(|e| e.to_string())?;
        Ok(())
    }

    /// Checks one of the filesystem images that we write.
    fn image_file(&mut self, path: &Path, record: &FileRecord, uuid: [u8; 16]) -> Found {
        let as_text = |error: Error| error.to_string();
        let file = File::open(path).context("open", path).map_err(as_text)?;
        let size = file
            .metadata()
            .context("look at", path)
            .map_err(as_text)?
            .len();
        let expected = padded_blocks(record.blocks).saturating_mul(BLOCK_SIZE);
        if size != expected {
            return Err(format!("it has {size} bytes instead of {expected}"));
        }
        let length = record.blocks * BLOCK_SIZE;
        let checksum = Checksum::of_file(&file, length)
            .context("read", path)
            .map_err(as_text)?;
        self.report.bytes += length;
        if checksum != record.checksum {
            return Err(format!(
                "its checksum is {checksum} instead of {}",
                record.checksum
            ));
        }
        let source = Cached::new(file).context("read", path).map_err(as_text)?;
        let reader = Reader::open(&source).map_err(|error| error.to_string())?;
        if reader.uuid() != uuid {
            return Err("its UUID is another image's".to_owned());
        }
        let problems = check::check(&source);
        match problems.len() {
            0 => Ok(()),
            count => {
                let mut text: Vec<_> = problems
                    .iter()
                    .take(PROBLEMS_MAX)
                    .map(ToString::to_string)
                    .collect();
                if count > PROBLEMS_MAX {
                    text.push(format!("and {} more", count - PROBLEMS_MAX));
                }
                Err(text.join("; "))
            }
        }
    }

    fn image(&mut self, digest: &Digest, image: &ImageEntry) -> Result<()> {
        self.report.images += 1;
        let Err(problem) = self.image_problem(digest, image) else {
            return Ok(());
        };
        self.finding(&image.path, problem, Repair::RemoveImage, |store| {
            image
                .references
                .iter()
                .try_for_each(|name| store.untag(name).map(drop))?;
            for sandbox in &image.sandboxes {
                durable::remove_file(&store.lease_path(sandbox)?)?;
            }
            remove_directory(store, &image.path)
        })
    }

    fn image_problem(&mut self, digest: &Digest, image: &ImageEntry) -> Found {
        let record = image.record.as_ref().map_err(ToString::to_string)?;
        check_format(record.format)?;
        if record.manifest != *digest {
            return Err(format!("its record is of image {}", record.manifest));
        }
        for (name, expected) in [(MANIFEST, record.manifest), (CONFIG, record.config)] {
            let bytes = fs::read(image.path.join(name)).map_err(|e| format!("{name}: {e}"))?;
            if Digest::of(&bytes) != expected {
                return Err(format!("{name} is not {expected}"));
            }
        }
        let layers = self.store.usable_layers(record)?;
        if let Some(layer) = layers
            .iter()
            .find(|l| !self.sound_layers.contains(&l.diff_id))
        {
            return Err(format!("its layer {} is bad", layer.diff_id));
        }
        let diff_ids = || layers.iter().map(|layer| &layer.diff_id);
        let fsmeta = image.path.join(FSMETA);
        self.image_file(&fsmeta, &record.fsmeta, identity::fsmeta_uuid(diff_ids()))
            .map_err(|problem| format!("{FSMETA}: {problem}"))?;
        if let Some(fixup) = &record.fixup {
            self.image_file(
                &image.path.join(FIXUP),
                fixup,
                identity::fixup_uuid(diff_ids()),
            )
            .map_err(|problem| format!("{FIXUP}: {problem}"))?;
        }
        let vmdk = images::descriptor(&record.fsmeta, &layers).map_err(|e| e.to_string())?;
        match fs::read(image.path.join(VMDK)) {
            Ok(bytes) if bytes == vmdk.as_bytes() => Ok(()),
            Ok(_) => Err(format!("{VMDK} describes something else")),
            Err(error) => Err(format!("{VMDK}: {error}")),
        }
    }

    /// Notes a finding, and repairs it if asked to.
    fn finding(
        &mut self,
        path: &Path,
        problem: String,
        repair: Repair,
        remove: impl FnOnce(&Store) -> Result<()>,
    ) -> Result<()> {
        if self.repair {
            remove(self.store)?;
        }
        let path = self.relative(path);
        self.report.findings.push(Finding {
            path,
            problem,
            repair,
            repaired: self.repair,
        });
        Ok(())
    }

    fn relative(&self, path: &Path) -> PathBuf {
        path.strip_prefix(self.store.root())
            .unwrap_or(path)
            .to_owned()
    }
}

/// Nothing, or what is wrong.
type Found = std::result::Result<(), String>;

fn check_format(format: u32) -> Found {
    match format == identity::FORMAT {
        true => Ok(()),
        false => Err(format!(
            "it was made in format {format}; this version of Micabox has {}",
            identity::FORMAT
        )),
    }
}
