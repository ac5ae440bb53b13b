//! Packs layers.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use micabox_erofs::BLOCK_SIZE;
use micabox_ground::locked::Mode;
use micabox_pack::{Cut, Known, List, Packed, Packer};
use rustix::fs::SeekFrom as Find;
use serde::Serialize;

use super::Store;
use super::checksum::Checksum;
use super::durable;
use super::error::{Context, Result};
use super::file_starts::file_starts;
use super::last_use::is_unused_for;
use super::layers::Layer;
use super::lock::Lock;
use super::packed::{LayerImage, is_damage, open_pack, transfers};
use super::reachability::{Reachability, disk_usage};
use super::scratch::Scratch;
use micabox_oci::Digest;
use micabox_oci::progress::{Event, LayerState, Phase, Progress};

/// Bytes that packing a layer saves at least, beside an eighth of its space: less is not worth what reading it costs its next start.
const LEAST: u64 = 64 << 10;

const PACK: &str = "pack";
const LIST: &str = "list";
const BUFFER: usize = 1 << 20;

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

/// What became of a layer's chunks.
enum Chunks {
    /// They are in packs, and the layer has this list. New files take so many bytes on disk.
    Written(List, u64),
    /// They would take too much space.
    TooMany,
    /// They don't make the layer's image: one that was in a pack already is damaged.
    Others,
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
        // Before the store's lock, for which who has this one waits. No pack is removed meanwhile.
        let lock = self.layout.pack_lock();
        let _lock = match patience {
            Patience::Wait => Lock::wait(&lock, Mode::Exclusive)?,
            Patience::Leave => match Lock::try_take(&lock, Mode::Exclusive)? {
                Some(lock) => lock,
                None => return Ok(report),
            },
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

    /// Returns the layers that are to be packed, and all chunks that are in packs.
    fn layers_to_pack(
        &self,
        choice: &PackChoice,
        report: &mut PackReport,
    ) -> Result<(Vec<Layer>, Known)> {
        let _shared = self.shared()?;
        let reachability = Reachability::take(self)?;
        let mut known = Known::default();
        for diff_id in reachability.layers.keys() {
            // What a list has that can't be read, or whose packs are not there, is packed once more.
            if let Ok(Some(list)) = self.list(diff_id)
                && self.has_packs(&list)
            {
                known.add(&list);
            }
        }
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
        if matches!(written, Chunks::Others) {
            written = self.write_chunks(layer, &image, &Known::default(), watch)?;
        }
        match written {
            Chunks::Written(list, added) => {
                known.add(&list);
                Ok(Outcome::Packed(added))
            }
            Chunks::TooMany => Ok(Outcome::Incompressible),
            Chunks::Others => Ok(Outcome::Damaged),
        }
    }

    /// Writes a layer's new chunks into a pack, and its list, and publishes both if they make its image.
    fn write_chunks(
        &self,
        layer: &Layer,
        image: &File,
        known: &Known,
        watch: &mut dyn FnMut(u64),
    ) -> Result<Chunks> {
        let scratch = Scratch::new(&self.layout.tmp())?;
        let path = scratch.path(PACK);
        let out = BufWriter::with_capacity(BUFFER, scratch.create(PACK)?);
        let packer = Packer::new(out, known).context("write", &path)?;
        let Packed { list, pack, out } = write(layer, image, packer, &path, watch)?;
        let on_disk = |bytes: u64| bytes.next_multiple_of(BLOCK_SIZE);
        let bytes = list.to_bytes();
        let added = pack.map_or(0, |pack| on_disk(pack.size)) + on_disk(bytes.len() as u64);
        let before = disk_usage(&layer.path)?;
        if before < added + LEAST.max(before / 8) {
            return Ok(Chunks::TooMany);
        }
        let out = out.into_inner().map_err(io::Error::from);
        out.and_then(|out| out.sync_all()).context("sync", &path)?;
        let open = |digest: &Digest| {
            let is_new = pack.is_some_and(|pack| pack.digest == *digest);
            let place = self.layout.pack(digest);
            open_pack(if is_new { &path } else { &place })
        };
        let packed = match micabox_pack::Image::new(list.clone(), open) {
            Ok(image) => LayerImage::Packed(Box::new(image)),
            Err(error) if is_damage(&error) => return Ok(Chunks::Others),
            Err(error) => return Err(self.chunk_error(&layer.diff_id, error)),
        };
        if !self.is_of(&packed, &layer.record)? {
            return Ok(Chunks::Others);
        }
        if let Some(pack) = pack {
            durable::publish(&path, &self.layout.pack(&pack.digest))?;
        }
        durable::write(&scratch, LIST, &bytes)?;
        durable::publish(&scratch.path(LIST), &self.layout.list(&layer.diff_id))?;
        Ok(Chunks::Written(list, added))
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
fn used(reachability: &Reachability) -> BTreeSet<Digest> {
    let is_used =
        |sandboxes: &[String]| !sandboxes.is_empty() || !reachability.unreadable_leases.is_empty();
    let images = reachability.images.values();
    images
        .filter(|image| is_used(&image.sandboxes))
        .flat_map(super::reachability::ImageEntry::layers)
        .collect()
}

/// Writes a layer's chunks.
fn write<'a>(
    layer: &Layer,
    image: &File,
    mut packer: Packer<'a, BufWriter<File>>,
    path: &Path,
    watch: &mut dyn FnMut(u64),
) -> Result<Packed<BufWriter<File>>> {
    let length = layer.image_size();
    let starts = file_starts(image, length, &layer.path)?;
    for (range, is_hole) in extents(image, length).context("read", &layer.path)? {
        if is_hole {
            packer.zeros(range.end - range.start);
            continue;
        }
        for part in split(range, &starts) {
            let mut cut = Cut::new(Part {
                image,
                at: part.start,
                end: part.end,
            });
            let mut at = part.start;
            while let Some(chunk) = cut.next_chunk().context("read", &layer.path)? {
                at += chunk.len() as u64;
                packer.chunk(chunk).context("write", path)?;
                watch(at);
            }
        }
    }
    packer.finish().context("write", path)
}

/// A part of a file.
struct Part<'a> {
    image: &'a File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = (self.end - self.at).min(buffer.len() as u64) as usize;
        let count = self
            .image
            .read_at(buffer.get_mut(..most).unwrap_or_default(), self.at)?;
        if count == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += count as u64;
        Ok(count)
    }
}

/// Returns the parts of a range between which files begin.
fn split(range: Range<u64>, starts: &[u64]) -> impl Iterator<Item = Range<u64>> {
    let from = starts.partition_point(|start| *start <= range.start);
    let to = starts.partition_point(|start| *start < range.end);
    let inner = starts.get(from..to).unwrap_or_default().iter().copied();
    let ends = inner.chain([range.end]);
    ends.scan(range.start, |start, end| {
        let part = *start..end;
        *start = end;
        Some(part)
    })
}

/// Returns which parts of a file are data, and which are holes (with true), from its start to `length`.
fn extents(file: &File, length: u64) -> io::Result<Vec<(Range<u64>, bool)>> {
    let mut extents = Vec::new();
    let mut at = 0;
    while at < length {
        let data = super::checksum::next_data(file, at)?.min(length);
        if data > at {
            extents.push((at..data, true));
        }
        let end = match rustix::fs::seek(file, Find::Hole(data)) {
            Ok(end) => end.clamp(data, length),
            // Not every filesystem supports holes.
            Err(_) => length,
        };
        if end > data {
            extents.push((data..end, false));
        }
        at = end.max(data);
        if data == end && data < length {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(extents)
}
