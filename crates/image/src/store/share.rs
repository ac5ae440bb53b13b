//! Equal files of layers that are whole share their blocks, on filesystems where files can (reflinks: XFS, btrfs).
//!
//! A layer's image is replaced by a clone of it in which the blocks of some files are those of another layer's. It has the
//! same bytes, which its checksum shows, before it is published; who has the old one open keeps that. An extended
//! attribute of the image says which blocks it shares, so that it is made once, and one of the directory of layers that
//! nothing has changed since.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use micabox_erofs::format::FileType;
use micabox_erofs::{BLOCK_SIZE, Cached, Reader};
use micabox_ground::locked::Mode;
use micabox_oci::{Digest, HashingWriter};
use rustix::fs::{XattrFlags, copy_file_range, fgetxattr, fsetxattr, ioctl_ficlone};

use super::Store;
use super::checksum::Checksum;
use super::durable;
use super::error::{Context, Error, Result};
use super::layers::{IMAGE, Layer};
use super::lock::Lock;
use super::pack::used;
use super::reachability::Reachability;
use super::scratch::Scratch;

/// Bytes of the smallest file whose blocks are shared: each is an extent of its own then.
const LEAST: u64 = 64 << 10;

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// The attribute of an image, and of the directory of layers.
const ATTRIBUTE: &str = "user.micabox.shared";

/// Bytes of the largest attribute: a digest and a number.
const ATTRIBUTE_MAX: usize = 128;

/// A file's blocks in a layer.
#[derive(Clone, Copy)]
struct Part {
    /// The layer's place in the list of all.
    layer: usize,
    address: u64,
    length: u64,
}

/// A layer that is whole.
struct Whole {
    layer: Layer,
    file: File,
    inode: u64,
    /// Whether a sandbox has it: its machines map this file, and later ones have to share their memory.
    is_used: bool,
}

impl Store {
    /// Has equal files of layers that are whole share their blocks, where the filesystem can. Returns the bytes of blocks
    /// that layers have in common then; 0 where it can't.
    ///
    /// If it is killed at any point, each layer is as it was, or shares.
    ///
    /// # Errors
    ///
    /// Errors of the disk; [`Error::Damaged`] for a layer that can't be read.
    pub fn share_blocks(&self) -> Result<u64> {
        let _shared = self.shared()?;
        if !self.has_reflinks()? {
            return Ok(0);
        }
        let mut layers = self.whole_layers()?;
        let state = state(&layers);
        if let Some((noted, bytes)) = self.noted_shares()?
            && noted == state
        {
            return Ok(bytes);
        }
        let plans = plans(&layers)?;
        let mut bytes = 0;
        // Sources come first, so that what shares with one knows which file that is now.
        for (number, plan) in &plans {
            let inode = self.share(*number, plan, &layers)?;
            if let Some(inode) = inode
                && let Some(whole) = layers.get_mut(*number)
            {
                whole.inode = inode;
                bytes += plan.iter().map(|(_, own)| own.length).sum::<u64>();
            }
        }
        self.note_shares(&self::state(&layers), bytes)?;
        Ok(bytes)
    }

    /// Returns the bytes of blocks that layers have in common by [`Store::share_blocks`], as far as that is known.
    pub(super) fn shared_blocks(&self) -> u64 {
        let Ok(Some((noted, bytes))) = self.noted_shares() else {
            return 0;
        };
        let layers = self.whole_layers();
        let is_same = layers.is_ok_and(|layers| noted == state(&layers));
        if is_same { bytes } else { 0 }
    }

    /// Returns whether the store's filesystem has files that share blocks.
    fn has_reflinks(&self) -> Result<bool> {
        let scratch = Scratch::new(&self.layout.tmp())?;
        let (from, to) = (scratch.create("from")?, scratch.create("to")?);
        let path = scratch.path("from");
        from.write_all_at(&[1; BLOCK_SIZE as usize], 0)
            .context("write", &path)?;
        Ok(ioctl_ficlone(&to, &from).is_ok())
    }

    fn whole_layers(&self) -> Result<Vec<Whole>> {
        let reachability = Reachability::take(self)?;
        let used = used(&reachability);
        let mut layers = Vec::new();
        for diff_id in reachability.layers.keys() {
            // One that can't be used is for fsck.
            let Ok(Some(layer)) = self.layer(diff_id) else {
                continue;
            };
            let file = match File::open(&layer.path) {
                // It is packed, or not all here.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.context("open", &layer.path)?,
            };
            let inode = file.metadata().context("look at", &layer.path)?.ino();
            layers.push(Whole {
                is_used: used.contains(diff_id),
                layer,
                file,
                inode,
            });
        }
        Ok(layers)
    }

    /// Replaces a layer's image by one that shares the blocks of the plan. Returns the inode of the file that does now.
    fn share(&self, number: usize, plan: &[(Part, Part)], layers: &[Whole]) -> Result<Option<u64>> {
        let Some(whole) = layers.get(number) else {
            return Ok(None);
        };
        let path = &whole.layer.path;
        let key = key(number, plan, layers);
        if attribute(&whole.file).is_some_and(|noted| noted == key) {
            return Ok(Some(whole.inode));
        }
        if whole.is_used {
            return Ok(None);
        }
        let lock = self.layout.layer_lock(&whole.layer.diff_id);
        let _lock = Lock::wait(&lock, Mode::Exclusive)?;
        let there = std::fs::metadata(path).map(|there| there.ino()).ok();
        // It may have been removed meanwhile, or made anew.
        let now = self.layer(&whole.layer.diff_id)?;
        if now.as_ref() != Some(&whole.layer) || there != Some(whole.inode) {
            return Ok(None);
        }
        let scratch = Scratch::new(&self.layout.tmp())?;
        let (new, place) = (scratch.create(IMAGE)?, scratch.path(IMAGE));
        let cloned = ioctl_ficlone(&new, &whole.file).map_err(io::Error::from);
        cloned.context("clone", path)?;
        for (from, own) in plan {
            let Some(source) = layers.get(from.layer) else {
                return Ok(None);
            };
            copy(&source.file, from.address, &new, own).context("share blocks of", path)?;
        }
        let length = whole.layer.image_size();
        let checksum = Checksum::of_file(&new, length).context("read", &place)?;
        if checksum != whole.layer.record.checksum {
            // One of the layers is damaged, which is for fsck.
            return Ok(None);
        }
        let noted = fsetxattr(&new, ATTRIBUTE, key.as_bytes(), XattrFlags::empty());
        noted.map_err(io::Error::from).context("mark", &place)?;
        new.sync_all().context("sync", &place)?;
        let inode = new.metadata().context("look at", &place)?.ino();
        drop(new);
        self.sealed(&place);
        durable::publish(&place, path)?;
        Ok(Some(inode))
    }

    /// Returns the layers that were looked at last, and what they have in common.
    fn noted_shares(&self) -> Result<Option<(String, u64)>> {
        let path = self.layout.layers();
        let directory = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            directory => directory.context("open", &path)?,
        };
        Ok(attribute(&directory).and_then(|text| {
            let (state, bytes) = text.split_once(' ')?;
            Some((state.to_owned(), bytes.parse().ok()?))
        }))
    }

    fn note_shares(&self, state: &str, bytes: u64) -> Result<()> {
        let path = self.layout.layers();
        let directory = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            directory => directory.context("open", &path)?,
        };
        let text = format!("{state} {bytes}");
        let noted = fsetxattr(&directory, ATTRIBUTE, text.as_bytes(), XattrFlags::empty());
        noted.map_err(io::Error::from).context("mark", &path)
    }
}

/// Reads the attribute of a file or directory.
fn attribute(file: &File) -> Option<String> {
    let mut value = [0; ATTRIBUTE_MAX];
    let length = fgetxattr(file, ATTRIBUTE, &mut value).ok()?;
    String::from_utf8(value.get(..length)?.to_vec()).ok()
}

/// Returns a digest of which layers are whole, in which files, and which of them are used.
fn state(layers: &[Whole]) -> String {
    let lines = layers.iter().map(|whole| {
        let use_mark = if whole.is_used { " used" } else { "" };
        format!("{} {}{use_mark}\n", whole.layer.diff_id, whole.inode)
    });
    Digest::of(lines.collect::<String>().as_bytes()).hex()
}

/// Returns a digest of what a layer shares, and with which files of other layers.
fn key(number: usize, plan: &[(Part, Part)], layers: &[Whole]) -> String {
    let lines = plan.iter().map(|(from, own)| {
        let source = layers.get(from.layer).filter(|_| from.layer != number);
        let inode = source.map_or(0, |source| source.inode);
        format!("{inode} {} {} {}\n", from.address, own.address, own.length)
    });
    Digest::of(lines.collect::<String>().as_bytes()).hex()
}

/// Returns which blocks each layer is to share, with an earlier one or within itself: by layer, the source's and its own.
fn plans(layers: &[Whole]) -> Result<BTreeMap<usize, Vec<(Part, Part)>>> {
    let mut parts: HashMap<u64, Vec<Part>> = HashMap::new();
    for (number, whole) in layers.iter().enumerate() {
        for (address, length) in files(whole)? {
            let part = Part {
                layer: number,
                address,
                length,
            };
            parts.entry(length).or_default().push(part);
        }
    }
    let mut first: HashMap<Digest, Part> = HashMap::new();
    let mut plans: BTreeMap<usize, Vec<(Part, Part)>> = BTreeMap::new();
    // A file that has another length than all others has no equal.
    for part in parts
        .into_values()
        .filter(|parts| parts.len() > 1)
        .flatten()
    {
        let Some(whole) = layers.get(part.layer) else {
            continue;
        };
        let digest = digest(&whole.file, &part).context("read", &whole.layer.path)?;
        match first.get(&digest) {
            Some(source) => plans.entry(part.layer).or_default().push((*source, part)),
            None => drop(first.insert(digest, part)),
        }
    }
    for plan in plans.values_mut() {
        plan.sort_unstable_by_key(|(_, own)| own.address);
    }
    Ok(plans)
}

/// Returns the blocks of large files in a layer's image: their addresses and lengths, in order and each once.
fn files(whole: &Whole) -> Result<BTreeMap<u64, u64>> {
    let (length, path) = (whole.layer.image_size(), &whole.layer.path);
    let damaged = |error: micabox_erofs::Error| Error::Damaged {
        path: path.clone(),
        problem: error.to_string(),
    };
    let image = Cached::new(&whole.file).context("read", path)?;
    let reader = Reader::open(image).map_err(damaged)?;
    let mut files = BTreeMap::new();
    reader
        .walk(|_, inode| {
            if inode.kind != FileType::Regular {
                return Ok(());
            }
            for extent in reader.extents(inode)? {
                let blocks = extent.length.next_multiple_of(BLOCK_SIZE);
                let own = extent.address.filter(|address| {
                    let end = address.checked_add(blocks);
                    address.is_multiple_of(BLOCK_SIZE) && end.is_some_and(|end| end <= length)
                });
                if let Some(address) = own
                    && blocks >= LEAST
                {
                    files.insert(address, blocks);
                }
            }
            Ok(())
        })
        .map_err(damaged)?;
    Ok(files)
}

/// Hashes a part of a file.
fn digest(file: &File, part: &Part) -> io::Result<Digest> {
    let mut hasher = HashingWriter::new(io::sink());
    let mut buffer = vec![0; PIECE];
    let (mut at, end) = (part.address, part.address + part.length);
    while at < end {
        let count = (end - at).min(PIECE as u64) as usize;
        let piece = buffer.get_mut(..count).unwrap_or_default();
        file.read_exact_at(piece, at)?;
        io::Write::write_all(&mut hasher, piece)?;
        at += count as u64;
    }
    let (_, digest, _) = hasher.finish();
    Ok(digest)
}

/// Has a part of a file be the same blocks as a part of another one.
fn copy(from: &File, address: u64, to: &File, part: &Part) -> io::Result<()> {
    let (mut source, mut target) = (address, part.address);
    let end = part.address + part.length;
    while target < end {
        let count = usize::try_from(end - target).unwrap_or(usize::MAX);
        let copied = copy_file_range(from, Some(&mut source), to, Some(&mut target), count)?;
        if copied == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}
