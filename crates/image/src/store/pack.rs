//! Packs layers.

use std::collections::BTreeSet;
use std::fs::File;
use std::time::Duration;

use micabox_ground::locked::Mode;
use micabox_pack::Known;
use serde::Serialize;

use super::Store;
use super::checksum::Checksum;
use super::chunked::{Chunked, Source};
use super::durable;
use super::error::{Context, Result};
use super::file_starts::file_starts;
use super::last_use::is_unused_for;
use super::layers::Layer;
use super::lock::Lock;
use super::packed::{LayerImage, read_list, transfers};
use super::reachability::{Reachability, disk_usage};
use micabox_oci::Digest;
use micabox_oci::progress::{Event, LayerState, Phase, Progress};

/// Bytes of images that were packed after which they are removed.
const BATCH: u64 = 256 << 20;

/// Which layers are packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackChoice {
    /// Those of these images, by manifest digest.
    Images(Vec<Digest>),
    /// Those of all images that no sandbox was started from for so long.
    UnusedFor(Duration),
}

/// What packing does while other processes use the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// It waits until none does.
    Wait,
    /// It leaves to the next packing what it can't do now.
    Leave,
}

/// What was packed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PackReport {
    /// Layers that are packed now, and have no image of their own any more.
    pub packed: Vec<Digest>,
    /// Layers that stay whole for now: a sandbox, a snapshot or a mount has a lease of an image that has them.
    pub in_use: Vec<Digest>,
    /// Layers that stay whole: packing them would save less than an eighth of their space, or than 64 KiB.
    pub incompressible: Vec<Digest>,
    /// Layers that stay whole: they have other bytes than when they were made.
    pub damaged: Vec<Digest>,
    /// Bytes on disk that the packed layers took.
    pub before: u64,
    /// Bytes on disk that new packs and lists take.
    pub added: u64,
}

/// What became of a layer.
enum Outcome {
    /// Its packed form is there, and makes its image. New files of it take so many bytes on disk.
    Packed(u64),
    Incompressible,
    Damaged,
    /// It was removed or packed meanwhile.
    Gone,
}

impl Store {
    /// Packs layers: their images become lists of chunks, which they share with each other, and which are compressed.
    /// An image is removed once its chunks were read back, and while no other process uses the store.
    ///
    /// If it is killed at any point, each layer is whole or packed. A thread that holds [`Store::shared`] must not pack.
    ///
    /// # Errors
    ///
    /// Errors of the disk. Layers that were packed before stay so.
    pub fn pack(
        &self,
        choice: &PackChoice,
        patience: Patience,
        progress: &dyn Progress,
    ) -> Result<PackReport> {
        let mut report = PackReport::default();
        let Some(_lock) = self.lock_of_packing(patience)? else {
            return Ok(report);
        };
        let (layers, mut known) = self.layers_to_pack(choice, &mut report)?;
        progress.event(Event::Phase(Phase::Layers));
        progress.event(Event::Layers(&transfers(layers.iter())));
        let (mut done, mut size) = (Vec::new(), 0);
        let mut packed = Ok(());
        for layer in &layers {
            let event = |state| {
                progress.event(Event::Layer {
                    diff_id: &layer.diff_id,
                    state,
                });
            };
            let watch = &mut |bytes| event(LayerState::Packed { bytes });
            match self.pack_layer(layer, &mut known, watch) {
                Ok(Outcome::Packed(added)) => {
                    report.added += added;
                    done.push(layer.diff_id);
                    event(LayerState::Done);
                    size += layer.image_size();
                    if size > BATCH {
                        size = 0;
                        self.remove_images(&mut done, Patience::Leave, &mut report)?;
                    }
                }
                Ok(Outcome::Incompressible) => {
                    report.incompressible.push(layer.diff_id);
                    event(LayerState::Present);
                }
                Ok(Outcome::Damaged) => report.damaged.push(layer.diff_id),
                Ok(Outcome::Gone) => {}
                Err(error) => {
                    packed = Err(error);
                    break;
                }
            }
        }
        progress.event(Event::Phase(Phase::Publishing));
        self.remove_images(&mut done, Patience::Leave, &mut report)?;
        if !done.is_empty() && packed.is_ok() && patience == Patience::Wait {
            progress.event(Event::Notice(
                "waiting for other users of the store, to remove what is packed",
            ));
            self.remove_images(&mut done, patience, &mut report)?;
        }
        progress.event(Event::Phase(Phase::Done));
        packed.map(|()| report)
    }

    /// Takes the lock of packing, while which no pack is removed; `None` if another process packs, and this one does not
    /// wait. It comes before the store's lock, for which who has this one waits.
    pub(super) fn lock_of_packing(&self, patience: Patience) -> Result<Option<Lock>> {
        let path = self.layout.pack_lock();
        match patience {
            Patience::Wait => Lock::wait(&path, Mode::Exclusive).map(Some),
            Patience::Leave => Lock::try_take(&path, Mode::Exclusive),
        }
    }

    /// Returns all chunks that are in packs. What a list has that can't be read, or whose packs are not there, is packed
    /// once more.
    pub(super) fn known(&self, reachability: &Reachability) -> Known {
        let layers = reachability.layers.keys().map(|layer| self.list(layer));
        let files = reachability.files.values();
        let files = files.map(|file| read_list(&file.list));
        let mut known = Known::default();
        for list in layers.chain(files).flatten().flatten() {
            if self.has_packs(&list) {
                known.add(&list);
            }
        }
        known
    }

    /// Returns the layers that are to be packed, and all chunks that are in packs.
    fn layers_to_pack(
        &self,
        choice: &PackChoice,
        report: &mut PackReport,
    ) -> Result<(Vec<Layer>, Known)> {
        let _shared = self.shared()?;
        let reachability = Reachability::take(self)?;
        let known = self.known(&reachability);
        let used = used(&reachability);
        let mut layers = Vec::new();
        for diff_id in &chosen(&reachability, choice) {
            match self.layer(diff_id)? {
                // One that can't be used is for fsck.
                None => {}
                Some(layer) if !self.is_whole(&layer) => {}
                Some(_) if used.contains(diff_id) => report.in_use.push(*diff_id),
                Some(layer) => layers.push(layer),
            }
        }
        Ok((layers, known))
    }

    /// Makes a layer's list, and a pack of its new chunks, and checks that they make its image.
    fn pack_layer(
        &self,
        layer: &Layer,
        known: &mut Known,
        watch: &mut dyn FnMut(u64),
    ) -> Result<Outcome> {
        let diff_id = &layer.diff_id;
        let _shared = self.shared()?;
        let _lock = Lock::wait(&self.layout.layer_lock(diff_id), Mode::Exclusive)?;
        // It may have been removed meanwhile, or made anew.
        if self.layer(diff_id)?.as_ref() != Some(layer) || !self.is_whole(layer) {
            return Ok(Outcome::Gone);
        }
        if let Ok(Some(list)) = self.list(diff_id)
            && let Ok(image) = self.packed_image(list)
            && self.is_of(&image, &layer.record)?
        {
            return Ok(Outcome::Packed(0));
        }
        let image = File::open(&layer.path).context("open", &layer.path)?;
        let checksum = Checksum::of_file(&image, layer.image_size());
        if checksum.context("read", &layer.path)? != layer.record.checksum {
            return Ok(Outcome::Damaged);
        }
        let mut written = self.write_chunks(layer, &image, known, watch)?;
        if matches!(written, Chunked::Others) {
            written = self.write_chunks(layer, &image, &Known::default(), watch)?;
        }
        match written {
            Chunked::Written(written) => {
                known.add(&written.list);
                Ok(Outcome::Packed(written.added))
            }
            Chunked::TooMany => Ok(Outcome::Incompressible),
            Chunked::Others => Ok(Outcome::Damaged),
        }
    }

    /// Writes a layer's new chunks into a pack, and its list, and publishes both if they make its image.
    fn write_chunks(
        &self,
        layer: &Layer,
        image: &File,
        known: &Known,
        watch: &mut dyn FnMut(u64),
    ) -> Result<Chunked> {
        let starts = file_starts(image, layer.image_size(), &layer.path)?;
        let source = Source {
            file: image,
            path: &layer.path,
            length: layer.image_size(),
            starts: &starts,
        };
        let is_sound = &|packed: &LayerImage| self.is_of(packed, &layer.record);
        let chunked = self.write_packs(&source, known, watch, is_sound)?;
        if let Chunked::Written(written) = &chunked {
            durable::publish(&written.list_path(), &self.layout.list(&layer.diff_id))?;
        }
        Ok(chunked)
    }

    /// Removes the images of layers that have a list, but for those that have a lease by now. Those that it could not
    /// remove, since another process uses the store, stay in `layers`.
    fn remove_images(
        &self,
        layers: &mut Vec<Digest>,
        patience: Patience,
        report: &mut PackReport,
    ) -> Result<()> {
        if layers.is_empty() {
            return Ok(());
        }
        let _exclusive = match patience {
            Patience::Wait => self.exclusive()?,
            Patience::Leave => match Lock::try_take(&self.layout.store_lock(), Mode::Exclusive)? {
                Some(lock) => lock,
                None => return Ok(()),
            },
        };
        let used = used(&Reachability::take(self)?);
        for diff_id in std::mem::take(layers) {
            let Some(layer) = self.layer(&diff_id)? else {
                continue;
            };
            if used.contains(&diff_id) || !self.has_packed(&diff_id, layer.record.blocks) {
                report.in_use.push(diff_id);
                continue;
            }
            report.before += disk_usage(&layer.path)?;
            durable::remove_file(&layer.path)?;
            report.packed.push(diff_id);
        }
        Ok(())
    }
}

/// Returns the layers that are to be packed.
fn chosen(reachability: &Reachability, choice: &PackChoice) -> BTreeSet<Digest> {
    let images = reachability.images.iter();
    match choice {
        PackChoice::Images(wanted) => images
            .filter(|(digest, _)| wanted.contains(digest))
            .flat_map(|(_, image)| image.layers())
            .collect(),
        PackChoice::UnusedFor(time) => {
            let (idle, busy): (Vec<_>, Vec<_>) =
                images.partition(|(_, image)| is_unused_for(&image.path, *time));
            let busy: BTreeSet<_> = busy.iter().flat_map(|(_, image)| image.layers()).collect();
            let idle = idle.iter().flat_map(|(_, image)| image.layers());
            idle.filter(|layer| !busy.contains(layer)).collect()
        }
    }
}

/// Returns the layers of images that sandboxes use. With a lease that can't be read, all are.
pub(super) fn used(reachability: &Reachability) -> BTreeSet<Digest> {
    let is_used =
        |sandboxes: &[String]| !sandboxes.is_empty() || !reachability.unreadable_leases.is_empty();
    let images = reachability.images.values();
    images
        .filter(|image| is_used(&image.sandboxes))
        .flat_map(super::reachability::ImageEntry::layers)
        .collect()
}
