//! Checks everything in the store, and removes what is damaged.

mod images;
mod kept;
mod lazy;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use micabox_erofs::{BLOCK_SIZE, Cached, Reader, check};

use super::Store;
use super::durable;
use super::error::{Context, Error, Result};
use super::fsck_report::{Finding, FsckReport, Repair};
use super::image_record::FileRecord;
use super::layers::{LayerRecord, RecipeRecord, padded_blocks};
use super::packed::{LayerImage, is_damage, read_list, unreadable};
use super::reachability::{FileEntry, LayerEntry, Reachability};
use super::scratch::Leftover;
use super::verity;
use crate::identity;
use micabox_oci::{Digest, HashingWriter};

/// How many structural problems of one image are reported.
const PROBLEMS_MAX: usize = 10;

/// Options of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsckOptions {
    /// Remove damaged files, after waiting until nothing else uses the store. Otherwise nothing is
    /// changed.
    pub repair: bool,
    /// Rebuild and hash every layer's archive: takes as long as the import took.
    pub archives: bool,
}

impl Store {
    /// Runs [`Store::fsck_with`] without `archives`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the store itself can't be listed or locked. Damage is in the report.
    pub fn fsck(&self, repair: bool) -> Result<FsckReport> {
        self.fsck_with(&FsckOptions {
            repair,
            ..FsckOptions::default()
        })
    }

    /// Checks the whole store: hashes every layer and its recipe, and checks its structure, every
    /// image's documents, merged metadata and layers, every kept blob, every name and lease.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the store itself can't be listed or locked. Damage is in the report.
    pub fn fsck_with(&self, options: &FsckOptions) -> Result<FsckReport> {
        let repair = options.repair;
        let _lock = if repair {
            self.exclusive()?
        } else {
            self.shared()?
        };
        let reachability = Reachability::take(self)?;
        let mut fsck = Fsck {
            store: self,
            repair,
            archives: options.archives,
            report: FsckReport::default(),
            sound_layers: BTreeSet::new(),
            unsealed: Vec::new(),
        };
        fsck.check(&reachability)?;
        Ok(fsck.report)
    }
}

struct Fsck<'a> {
    store: &'a Store,
    repair: bool,
    archives: bool,
    report: FsckReport,
    sound_layers: BTreeSet<Digest>,
    /// Sound files that were published with fs-verity and have none.
    unsealed: Vec<PathBuf>,
}

impl Fsck<'_> {
    fn check(&mut self, reachability: &Reachability) -> Result<()> {
        let leftovers = Leftover::find(&self.store.layout.tmp());
        self.report.leftovers = leftovers.len();
        if self.repair {
            leftovers.into_iter().try_for_each(Leftover::remove)?;
        }
        for (diff_id, layer) in &reachability.layers {
            self.layer(diff_id, layer)?;
        }
        for (digest, image) in &reachability.images {
            self.image(digest, image)?;
        }
        for file in reachability.files.values() {
            self.file(file)?;
        }
        for (digest, blob) in &reachability.kept {
            self.kept(digest, blob)?;
        }
        self.unsealed();
        for dangling in &reachability.dangling_tags {
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
        let broken = reachability.broken_leases.iter().map(|(sandbox, image)| {
            (
                sandbox,
                format!("sandbox `{sandbox}` runs on image {image}, which isn't here"),
            )
        });
        let unreadable = reachability
            .unreadable_leases
            .iter()
            .map(|(sandbox, error)| (sandbox, error.to_string()));
        for (sandbox, problem) in broken.chain(unreadable) {
            let path = self.store.lease_path(sandbox)?;
            self.finding(&path, problem, Repair::RemoveLease, |_| {
                durable::remove_file(&path)
            })?;
        }
        if self.repair {
            reachability
                .stray_blobs
                .iter()
                .try_for_each(|blob| durable::remove_file(blob))?;
        }
        self.report.strangers = reachability
            .strangers
            .iter()
            .map(|path| self.relative(path))
            .collect();
        Ok(())
    }

    fn layer(&mut self, diff_id: &Digest, layer: &LayerEntry) -> Result<()> {
        let (problem, path) = match (&layer.image, &layer.record) {
            (_, None) => {
                // A layer without a record, partly published or partly removed, doesn't exist.
                self.report.leftovers += 1;
                if self.repair {
                    layer
                        .files()
                        .try_for_each(|file| durable::remove_file(file))?;
                }
                return Ok(());
            }
            (image, Some(record)) => {
                self.report.layers += 1;
                if image.is_some() && !layer.lazy.is_empty() {
                    // What a crash has left where the layer became whole.
                    self.report.leftovers += 1;
                    if self.repair {
                        self.store.remove_lazy(diff_id)?;
                    }
                }
                match self.layer_problem(diff_id, layer, record)? {
                    Ok(()) => {
                        self.sound_layers.insert(*diff_id);
                        return self.list(diff_id, layer);
                    }
                    Err(problem) => {
                        if let Some(image) = image
                            && self.is_soundly_packed(diff_id, record)?
                        {
                            self.sound_layers.insert(*diff_id);
                            return self.finding(image, problem, Repair::RemoveFile, |_| {
                                durable::remove_file(image)
                            });
                        }
                        (problem, image.as_ref().unwrap_or(record))
                    }
                }
            }
        };
        self.finding(path, problem, Repair::RemoveLayer, |_| {
            layer
                .files()
                .try_for_each(|file| durable::remove_file(file))
        })
    }

    /// Checks the packed form of a sandbox's file.
    fn file(&mut self, file: &FileEntry) -> Result<()> {
        let path = &file.list;
        let list = match read_list(path) {
            // It was removed, or unpacked, meanwhile.
            Ok(None) => return Ok(()),
            Ok(Some(list)) => Ok(list),
            Err(error @ Error::Damaged { .. }) => Err(error.to_string()),
            Err(error) => return Err(error),
        };
        let problem = match list {
            Ok(list) => {
                self.report.files += usize::from(!file.is_whole);
                self.report.bytes += list.size();
                let found = self.store.check_file(&list);
                found.map_err(|error| unreadable(error, path))?
            }
            Err(problem) => Err(problem),
        };
        match problem {
            Ok(()) => Ok(()),
            Err(problem) if file.is_whole => {
                self.finding(path, problem, Repair::RemoveList, |_| {
                    durable::remove_file(path)
                })
            }
            Err(problem) => {
                let repaired = false;
                self.report.findings.push(Finding {
                    path: self.relative(path),
                    problem,
                    repair: Repair::Keep,
                    repaired,
                });
                Ok(())
            }
        }
    }

    /// Returns whether all of a layer but its image is sound, and the image can be made of its chunks.
    fn is_soundly_packed(&mut self, diff_id: &Digest, record: &Path) -> Result<bool> {
        let Ok(record) = layer_record(diff_id, record) else {
            return Ok(false);
        };
        let uuid = identity::layer_uuid(record.identity());
        let is_packed = self
            .packed(diff_id, &FileRecord::from(&record), uuid)?
            .is_ok();
        Ok(is_packed && self.recipe(diff_id, record.recipe.as_ref()).is_ok())
    }

    /// Checks the packed form of a layer that is whole.
    fn list(&mut self, diff_id: &Digest, layer: &LayerEntry) -> Result<()> {
        let (Some(path), Some(_)) = (&layer.list, &layer.image) else {
            return Ok(());
        };
        let Some(sound) = self.store.layer(diff_id)? else {
            return Ok(());
        };
        let record = FileRecord::from(&sound.record);
        let uuid = identity::layer_uuid(sound.identity());
        match self.packed(diff_id, &record, uuid)? {
            Ok(()) => Ok(()),
            Err(problem) => self.finding(path, problem, Repair::RemoveList, |_| {
                durable::remove_file(path)
            }),
        }
    }

    /// Checks a packed layer's image, which reads all of its chunks. What can't be read for a reason that is no damage is
    /// an error, and removes nothing.
    fn packed(&mut self, diff_id: &Digest, record: &FileRecord, uuid: [u8; 16]) -> Result<Found> {
        let list = match self.store.list(diff_id) {
            Ok(Some(list)) => list,
            Ok(None) => return Ok(Err("its list of chunks is missing".to_owned())),
            Err(error @ Error::Damaged { .. }) => return Ok(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        if list.size() != record.blocks * BLOCK_SIZE {
            return Ok(Err("its list is that of another image".to_owned()));
        }
        let image = self.store.packed_image(list);
        match image.and_then(|image| self.bytes(&image, record, uuid)) {
            Ok(found) => Ok(found),
            Err(error) if is_damage(&error) => Ok(Err(error.to_string())),
            Err(error) => Err(self.store.chunk_error(diff_id, error)),
        }
    }

    fn layer_problem(
        &mut self,
        diff_id: &Digest,
        layer: &LayerEntry,
        record: &Path,
    ) -> Result<Found> {
        let record = match layer_record(diff_id, record) {
            Ok(record) => record,
            Err(problem) => return Ok(Err(problem)),
        };
        let file = FileRecord::from(&record);
        let uuid = identity::layer_uuid(record.identity());
        let found = match (&layer.image, &layer.list) {
            (Some(image), _) => self.image_file(image, &file, uuid),
            (None, None) if layer.is_lazy() => self.lazy_layer(diff_id, uuid)?,
            (None, None) => Err("its image is missing".to_owned()),
            (None, Some(_)) => self.packed(diff_id, &file, uuid)?,
        };
        Ok(found.and_then(|()| self.recipe(diff_id, record.recipe.as_ref())))
    }

    /// Checks a layer's recipe, and rebuilds the archive from it if `archives` is set.
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
        let layer = self
            .store
            .layer(diff_id)
            .map_err(|e| e.to_string())?
            .ok_or("it was removed meanwhile")?;
        let mut archive = self.store.archive(&layer).map_err(|e| e.to_string())?;
        self.report.bytes += io::copy(&mut archive, &mut io::sink()).map_err(|e| e.to_string())?;
        Ok(())
    }

    /// Checks a filesystem image of the store.
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
        if let Some(digest) = verity::digest(&file) {
            self.report.sealed += 1;
            if let Some(expected) = record.verity.filter(|expected| *expected != digest) {
                return Err(format!(
                    "its fs-verity digest is {digest} instead of {expected}"
                ));
            }
        }
        let is_unsealed = record.verity.is_some() && verity::digest(&file).is_none();
        let found = self.bytes(&LayerImage::Whole(file), record, uuid);
        found.context("read", path).map_err(as_text)??;
        if is_unsealed {
            self.unsealed.push(path.to_owned());
        }
        Ok(())
    }

    /// Reports files that have lost their fs-verity, where it is on and the filesystem has it. Their bytes are those that
    /// were published, and can get it again.
    fn unsealed(&mut self) {
        let unsealed = std::mem::take(&mut self.unsealed);
        if unsealed.is_empty() || !self.store.seals() {
            return;
        }
        for path in unsealed {
            // A repair may have removed what it belongs to.
            if !path.exists() {
                continue;
            }
            let problem =
                "it was published with fs-verity and has none, as files that were restored from a \
                           backup: the kernel does not check it"
                    .to_owned();
            self.report.findings.push(Finding {
                repaired: self.repair && self.store.sealed(&path).is_some(),
                path: self.relative(&path),
                problem,
                repair: Repair::Seal,
            });
        }
    }

    /// Checks the bytes and the structure of a filesystem image.
    fn bytes(
        &mut self,
        image: &LayerImage,
        record: &FileRecord,
        uuid: [u8; 16],
    ) -> io::Result<Found> {
        let length = record.blocks * BLOCK_SIZE;
        let checksum = image.checksum(length)?;
        self.report.bytes += length;
        if checksum != record.checksum {
            let problem = format!("its checksum is {checksum} instead of {}", record.checksum);
            return Ok(Err(problem));
        }
        Ok(structure(&Cached::new(image)?, uuid))
    }

    /// Records a problem, and repairs it if that was requested.
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

/// `Ok`, or the problem.
type Found = std::result::Result<(), String>;

fn check_format(format: u32) -> Found {
    if format == identity::FORMAT {
        Ok(())
    } else {
        Err(format!(
            "it was made in format {format}; this version of Micabox has {}",
            identity::FORMAT
        ))
    }
}

/// Returns the record of a layer, if it is one.
fn layer_record(diff_id: &Digest, path: &Path) -> std::result::Result<LayerRecord, String> {
    let record: LayerRecord = durable::read_json(path)
        .map_err(|error| error.to_string())?
        .ok_or("its record is missing")?;
    check_format(record.format)?;
    if record.diff_id != *diff_id {
        return Err(format!("its record is of layer {}", record.diff_id));
    }
    Ok(record)
}

/// Checks the structure of a filesystem image.
fn structure(image: &Cached<&LayerImage>, uuid: [u8; 16]) -> Found {
    let reader = Reader::open(image).map_err(|error| error.to_string())?;
    if reader.uuid() != uuid {
        return Err("its UUID is another image's".to_owned());
    }
    let problems = check::check(image);
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
