//! Cuts a file into chunks, writes those that are in no pack yet, and reads them back.

use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use micabox_erofs::BLOCK_SIZE;
use micabox_pack::{Cut, Known, List, Packed, Packer, Piece};
use rustix::fs::SeekFrom as Find;

use super::Store;
use super::durable;
use super::error::{Context, Result};
use super::packed::{LayerImage, is_damage, open_pack, unreadable};
use super::scratch::Scratch;
use micabox_oci::Digest;

/// Bytes that packing a file saves at least, beside an eighth of its space: less is not worth what reading it costs its
/// next use.
const LEAST: u64 = 64 << 10;

const PACK: &str = "pack";
const LIST: &str = "list";
const BUFFER: usize = 1 << 20;

/// What became of a file's chunks.
pub(super) enum Chunked {
    /// They are in packs.
    Written(Written),
    /// They would take too much space.
    TooMany,
    /// They don't make the file: one that was in a pack already is damaged, or the file changes.
    Others,
}

/// A file's list, which is not at its place yet.
pub(super) struct Written {
    pub list: List,
    /// Bytes on disk that the file takes.
    pub before: u64,
    /// Bytes on disk that the new pack and the list take.
    pub added: u64,
    scratch: Scratch,
}

impl Written {
    /// Returns the path of the list, which is synced.
    pub fn list_path(&self) -> PathBuf {
        self.scratch.path(LIST)
    }
}

impl Store {
    /// Writes a file's new chunks into a pack, and its list, and publishes the pack if `is_sound` is true of what the list
    /// makes.
    pub(super) fn write_packs(
        &self,
        source: &Source<'_>,
        known: &Known,
        watch: &mut dyn FnMut(u64),
        is_sound: &dyn Fn(&LayerImage) -> Result<bool>,
    ) -> Result<Chunked> {
        let scratch = Scratch::new(&self.layout.tmp())?;
        let path = scratch.path(PACK);
        let out = BufWriter::with_capacity(BUFFER, scratch.create(PACK)?);
        let packer = Packer::new(out, known).context("write", &path)?;
        let Packed { list, pack, out } = write(source, packer, &path, watch)?;
        let on_disk = |bytes: u64| bytes.next_multiple_of(BLOCK_SIZE);
        let bytes = list.to_bytes();
        let added = pack.map_or(0, |pack| on_disk(pack.size)) + on_disk(bytes.len() as u64);
        let metadata = source.file.metadata().context("look at", source.path)?;
        let before = metadata.blocks() * 512;
        if before < added + LEAST.max(before / 8) {
            return Ok(Chunked::TooMany);
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
            Err(error) if is_damage(&error) => return Ok(Chunked::Others),
            Err(error) => return Err(unreadable(error, source.path)),
        };
        if !is_sound(&packed)? {
            return Ok(Chunked::Others);
        }
        if let Some(pack) = pack {
            durable::publish(&path, &self.layout.pack(&pack.digest))?;
        }
        durable::write(&scratch, LIST, &bytes)?;
        Ok(Chunked::Written(Written {
            list,
            before,
            added,
            scratch,
        }))
    }
}

/// Where a file that is packed is read, and what is known of it.
pub(super) struct Source<'a> {
    pub file: &'a File,
    /// Its path, for errors.
    pub path: &'a Path,
    /// The length of what is packed of it, in bytes.
    pub length: u64,
    /// Where files begin in it, ascending, as far as that is known.
    pub starts: &'a [u64],
}

/// Writes a file's chunks. `to` is the path of the packer's output; `watch` gets the number of bytes that are done.
fn write<'a>(
    source: &Source<'_>,
    mut packer: Packer<'a, BufWriter<File>>,
    to: &Path,
    watch: &mut dyn FnMut(u64),
) -> Result<Packed<BufWriter<File>>> {
    for (range, is_hole) in extents(source.file, source.length).context("read", source.path)? {
        if is_hole {
            packer.zeros(range.end - range.start);
            continue;
        }
        for part in split(range, source.starts) {
            let mut cut = Cut::new(Part {
                image: source.file,
                at: part.start,
                end: part.end,
            });
            let mut at = part.start;
            while let Some(piece) = cut.next_piece().context("read", source.path)? {
                match piece {
                    Piece::Chunk(bytes) => {
                        at += bytes.len() as u64;
                        packer.chunk(bytes).context("write", to)?;
                    }
                    Piece::Zeros(count) => {
                        at += count as u64;
                        packer.zeros(count as u64);
                    }
                }
                watch(at);
            }
        }
    }
    packer.finish().context("write", to)
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
