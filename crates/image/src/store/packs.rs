//! Packs that layers' lists name: which frames of them are in use, and removal of the others.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use micabox_pack::{List, MAGIC};

use super::Store;
use super::durable;
use super::error::{Context, Error, Result};
use super::reachability::PackEntry;
use super::scratch::Scratch;
use micabox_oci::{Digest, HashingWriter};

/// What removing frames of which no layer has a chunk would free, and which packs it concerns.
#[derive(Default)]
pub(super) struct Sweep {
    /// Packs that no layer names.
    dead: Vec<PathBuf>,
    /// Packs that are mostly frames of which no layer has a chunk, and are written anew without them: offset and length
    /// of the others.
    sparse: Vec<(Digest, BTreeMap<u64, u32>)>,
    /// Bytes on disk that it frees.
    pub size: u64,
}

impl Store {
    /// Plans what is to be removed once only `layers` are left.
    pub(super) fn sweep<'a>(
        &self,
        packs: &BTreeMap<Digest, PackEntry>,
        layers: impl IntoIterator<Item = &'a Digest>,
    ) -> Sweep {
        let mut sweep = Sweep::default();
        if packs.is_empty() {
            return sweep;
        }
        let mut live: BTreeMap<Digest, BTreeMap<u64, u32>> = BTreeMap::new();
        for diff_id in layers {
            // A layer whose list can't be read has no image either.
            if let Ok(Some(list)) = self.list(diff_id) {
                note_live(&mut live, &list);
            }
        }
        for (digest, pack) in packs {
            let Some(frames) = live.remove(digest) else {
                sweep.size += pack.bytes;
                sweep.dead.push(pack.path.clone());
                continue;
            };
            let used: u64 = frames.values().map(|length| u64::from(*length)).sum();
            if used < pack.bytes / 2 {
                sweep.size += pack.bytes.saturating_sub(used.next_multiple_of(4096));
                sweep.sparse.push((*digest, frames));
            }
        }
        sweep
    }

    /// Carries it out. The caller holds the store's lock exclusively, and has removed all other layers.
    pub(super) fn carry_out_sweep<'a>(
        &self,
        sweep: Sweep,
        layers: impl IntoIterator<Item = &'a Digest> + Clone,
    ) -> Result<()> {
        for (digest, frames) in sweep.sparse {
            self.rewrite(&digest, &frames, layers.clone())?;
        }
        sweep
            .dead
            .iter()
            .try_for_each(|path| durable::remove_file(path))
    }

    /// Writes a pack anew with only these frames, then the lists that name it, and removes it.
    fn rewrite<'a>(
        &self,
        pack: &Digest,
        frames: &BTreeMap<u64, u32>,
        layers: impl IntoIterator<Item = &'a Digest>,
    ) -> Result<()> {
        let scratch = Scratch::new(&self.layout.tmp())?;
        let (path, new) = (self.layout.pack(pack), scratch.path("pack"));
        let old = File::open(&path).context("open", &path)?;
        let mut out = HashingWriter::new(BufWriter::new(scratch.create("pack")?));
        let mut offsets = BTreeMap::new();
        let mut at = MAGIC.len() as u64;
        out.write_all(&MAGIC).context("write", &new)?;
        for (offset, length) in frames {
            let mut frame = vec![0; *length as usize];
            old.read_exact_at(&mut frame, *offset)
                .context("read", &path)?;
            out.write_all(&frame).context("write", &new)?;
            offsets.insert(*offset, at);
            at += u64::from(*length);
        }
        let (out, digest, _) = out.finish();
        let file = out.into_inner().map_err(std::io::Error::from);
        let file = file.context("write", &new)?;
        file.sync_all().context("sync", &new)?;
        durable::publish(&new, &self.layout.pack(&digest))?;
        for diff_id in layers {
            let Ok(Some(list)) = self.list(diff_id) else {
                continue;
            };
            if !list.packs().contains(pack) {
                continue;
            }
            let path = self.layout.list(diff_id);
            let moved = list.moved(pack, &digest, |offset| offsets.get(&offset).copied());
            let moved = moved.map_err(|error| Error::Damaged {
                path: path.clone(),
                problem: error.to_string(),
            })?;
            durable::write(&scratch, &diff_id.hex(), &moved.to_bytes())?;
            durable::publish(&scratch.path(&diff_id.hex()), &path)?;
        }
        durable::remove_file(&path)
    }
}

/// Notes which frames a layer has chunks in.
fn note_live(live: &mut BTreeMap<Digest, BTreeMap<u64, u32>>, list: &List) {
    for frame in list.frames() {
        if let Some(pack) = list.packs().get(frame.pack as usize) {
            let frames = live.entry(*pack).or_default();
            frames.insert(frame.offset, frame.packed);
        }
    }
}

/// Returns how many bytes the frames take that a packed layer has chunks in.
pub(super) fn packed_size(list: &List) -> u64 {
    let frames = list.frames().iter();
    frames.map(|frame| u64::from(frame.packed)).sum()
}

/// Returns how many bytes of a layer's image are not zeros that take no space.
pub(super) fn unpacked_size(list: &List) -> u64 {
    let data = list.chunks().iter().filter(|chunk| chunk.place.is_some());
    data.map(|chunk| u64::from(chunk.length)).sum()
}
