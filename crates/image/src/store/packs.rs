//! Packs that the lists of layers and files name: which frames of them are in use, and removal of the others.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use micabox_ground::locked::Mode;
use micabox_pack::{FRAME, List, MAGIC};

use super::Store;
use super::durable;
use super::error::{Context, Error, Result};
use super::files::replace_list;
use super::lock::Lock;
use super::packed::read_list;
use super::reachability::{LayerEntry, Reachability, disk_usage};
use super::scratch::Scratch;
use micabox_oci::{Digest, HashingWriter};

/// The frames of a pack that are in use: their lengths, by offset.
type Frames = BTreeMap<u64, u32>;

/// What removing frames of which no layer has a chunk would free, and which packs it concerns.
#[derive(Default)]
pub(super) struct Sweep {
    /// Lists of layers and files that are whole: only the next packing would use them.
    copies: Vec<PathBuf>,
    /// Packs that no layer names.
    dead: Vec<PathBuf>,
    /// Packs that are mostly frames of which no layer has a chunk, and are written anew without them.
    /// With what that frees.
    sparse: Vec<(Digest, Frames, u64)>,
    /// Bytes on disk that it frees.
    pub size: u64,
    /// Why packs are left alone that may be of no use.
    pub kept: Option<String>,
}

impl Sweep {
    /// Removes nothing.
    pub fn nothing(why: String) -> Self {
        Self {
            kept: Some(why),
            ..Self::default()
        }
    }
}

impl Store {
    /// Keeps layers from being packed, which needs the packs that there are; `None` if some are being packed.
    pub(super) fn keep_from_packing(&self) -> Result<Option<Lock>> {
        Lock::try_take(&self.layout.pack_lock(), Mode::Exclusive)
    }

    /// Plans what is to be removed once only `layers` are left beside sandboxes' files, with the lists of those that are
    /// whole, if `with_copies`. With a list that can't be read nothing is: its packs are not known.
    pub(super) fn sweep<'a>(
        &self,
        reachability: &Reachability,
        layers: impl Iterator<Item = (&'a Digest, &'a LayerEntry)>,
        with_copies: bool,
    ) -> Sweep {
        let mut sweep = Sweep::default();
        let mut live: BTreeMap<Digest, Frames> = BTreeMap::new();
        for (diff_id, layer) in layers {
            let Some(path) = &layer.list else {
                continue;
            };
            if with_copies && layer.image.is_some() {
                sweep.size += disk_usage(path).unwrap_or(0);
                sweep.copies.push(path.clone());
                continue;
            }
            match self.list(diff_id) {
                Ok(list) => list.iter().for_each(|list| note_live(&mut live, list)),
                Err(error) => return Sweep::nothing(error.to_string()),
            }
        }
        for file in reachability.files.values() {
            if with_copies && file.is_whole {
                sweep.size += disk_usage(&file.list).unwrap_or(0);
                sweep.copies.push(file.list.clone());
                continue;
            }
            match read_list(&file.list) {
                Ok(list) => list.iter().for_each(|list| note_live(&mut live, list)),
                Err(error) => return Sweep::nothing(error.to_string()),
            }
        }
        for (digest, pack) in &reachability.packs {
            let Some(frames) = live.remove(digest) else {
                sweep.size += pack.bytes;
                sweep.dead.push(pack.path.clone());
                continue;
            };
            let used = MAGIC.len() as u64 + frames.values().map(|n| u64::from(*n)).sum::<u64>();
            // To write one anew is for prune.
            if with_copies && used < pack.length / 2 {
                let after = used.next_multiple_of(4096);
                let frees = pack.bytes.saturating_sub(after);
                sweep.size += frees;
                sweep.sparse.push((*digest, frames, frees));
            }
        }
        sweep
    }

    /// Carries it out, and changes it to what was done. The caller holds the store's lock exclusively and that of packing,
    /// and has removed all layers but `layers`. A pack that can't be written anew, on a full disk for instance, stays.
    pub(super) fn carry_out_sweep<'a>(
        &self,
        sweep: &mut Sweep,
        layers: impl Iterator<Item = &'a Digest> + Clone,
    ) -> Result<()> {
        for path in sweep.copies.iter().chain(&sweep.dead) {
            durable::remove_file(path)?;
        }
        for (digest, frames, frees) in std::mem::take(&mut sweep.sparse) {
            let lists = layers.clone().map(|layer| self.layout.list(layer));
            if let Err(error) = self.rewrite(&digest, &frames, lists) {
                sweep.size -= frees;
                sweep.kept = Some(error.to_string());
            }
        }
        Ok(())
    }

    /// Writes a pack anew with only these frames, then the lists of layers and files that name it, and removes it.
    fn rewrite(
        &self,
        pack: &Digest,
        frames: &Frames,
        layers: impl Iterator<Item = PathBuf>,
    ) -> Result<()> {
        let scratch = Scratch::new(&self.layout.tmp())?;
        let (path, new) = (self.layout.pack(pack), scratch.path("pack"));
        let old = File::open(&path).context("open", &path)?;
        let mut out = HashingWriter::new(BufWriter::new(scratch.create("pack")?));
        let mut offsets = BTreeMap::new();
        let mut at = MAGIC.len() as u64;
        out.write_all(&MAGIC).context("write", &new)?;
        for (offset, length) in frames {
            let frame = sound_frame(&old, *offset, *length).context("read", &path)?;
            out.write_all(&frame).context("write", &new)?;
            offsets.insert(*offset, at);
            at += u64::from(*length);
        }
        let (out, digest, _) = out.finish();
        if digest == *pack {
            return Ok(());
        }
        let file = out.into_inner().map_err(io::Error::from);
        file.and_then(|file| file.sync_all())
            .context("write", &new)?;
        durable::publish(&new, &self.layout.pack(&digest))?;
        for path in layers.chain(self.file_lists()?) {
            let Some(list) = read_list(&path)? else {
                continue;
            };
            if !list.packs().contains(pack) {
                continue;
            }
            let moved = list.moved(pack, &digest, |offset| offsets.get(&offset).copied());
            let moved = moved.map_err(|error| Error::Damaged {
                path: path.clone(),
                problem: error.to_string(),
            })?;
            let name = Digest::of(path.as_os_str().as_bytes()).hex();
            durable::write(&scratch, &name, &moved.to_bytes())?;
            replace_list(&scratch.path(&name), &path)?;
        }
        durable::remove_file(&path)
    }
}

/// Reads a frame, and checks that it inflates: what is damaged gets no new name.
fn sound_frame(pack: &File, offset: u64, length: u32) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; length as usize];
    pack.read_exact_at(&mut frame, offset)?;
    zstd::bulk::decompress(&frame, FRAME)?;
    Ok(frame)
}

/// Notes which frames a layer has chunks in.
fn note_live(live: &mut BTreeMap<Digest, Frames>, list: &List) {
    for frame in list.frames() {
        if let Some(pack) = list.packs().get(frame.pack as usize) {
            let frames = live.entry(*pack).or_default();
            frames.insert(frame.offset, frame.packed);
        }
    }
}

/// Returns how many bytes the frames take that layers have chunks in, each counted once.
pub(super) fn live_size<'a>(lists: impl Iterator<Item = &'a List>) -> u64 {
    let mut live = BTreeMap::new();
    lists.for_each(|list| note_live(&mut live, list));
    let frames = live.values().flat_map(BTreeMap::values);
    frames.map(|length| u64::from(*length)).sum()
}

/// Returns how many bytes of a layer's image are not zeros that take no space.
pub(super) fn unpacked_size(list: &List) -> u64 {
    let data = list.chunks().iter().filter(|chunk| chunk.place.is_some());
    data.map(|chunk| u64::from(chunk.length)).sum()
}
