//! Cuts sparse files into chunks, and packs those that no other pack has.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use micabox_chunk::{CHUNK, Entry, FRAME_HEADER, Map, Writer};
use micabox_image::Descriptor;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::known::{Known, Place};
use super::{FULL, MOST_PACKS, PACK, Pack, SparseFile};

/// Chunks that are compressed together: zstd makes less of more, and who needs one fetches all of them.
const TOGETHER: usize = 8;

/// What is made of a snapshot's files.
pub(super) struct Cut {
    /// The maps, in the files' order. Their packs are those of `used`.
    pub(super) maps: Vec<Map>,
    /// Each pack that a map names, with its blob if it is new.
    pub(super) packs: Vec<(Pack, Option<Arc<File>>)>,
    pub(super) chunks: Chunks,
}

/// Chunks of a snapshot's files that are not zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chunks {
    /// All of them.
    pub all: u64,
    /// Those that packs of other snapshots have.
    pub of_others: u64,
    /// Those that are equal to another one of the same snapshot, which was counted before.
    pub repeated: u64,
}

/// Cuts files. Packs are written to files that `make` makes. `watch` is called with the number of bytes that were read,
/// and returns whether to continue.
///
/// # Errors
/// Those of reading and writing files; [`io::ErrorKind::Interrupted`] if `watch` says so.
pub(super) fn cut(
    files: &[SparseFile],
    known: &Known,
    make: &dyn Fn() -> io::Result<File>,
    watch: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Cut> {
    let mut packer = Packer {
        known,
        new: HashMap::new(),
        numbers: HashMap::new(),
        packs: Vec::new(),
        current: None,
        chunks: Chunks::default(),
        make,
    };
    let mut maps = Vec::new();
    let mut read = 0;
    for SparseFile { file, path, .. } in files {
        let cut = cut_one(file, &mut packer, &mut |bytes| {
            read += bytes;
            watch(read)
        });
        maps.push(cut.map_err(|error| {
            let kind = error.kind();
            io::Error::new(kind, format!("{}: {error}", path.display()))
        })?);
    }
    packer.end()?;
    let chunks = packer.chunks;
    let packs = packer.packs.into_iter();
    let packs = packs.map(|pack| pack.ok_or_else(|| io::Error::other("a pack was not ended")));
    Ok(Cut {
        maps,
        packs: packs.collect::<io::Result<_>>()?,
        chunks,
    })
}

fn cut_one(
    file: &File,
    packer: &mut Packer<'_>,
    watch: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Map> {
    let size = file.metadata()?.len();
    let mut map = Map::new(size);
    let mut buffer = vec![0; CHUNK as usize];
    let mut at = 0;
    while let Some(data) = data_behind(file, at, size)? {
        at = data.start / CHUNK * CHUNK;
        while at < data.end {
            let length = CHUNK.min(size - at);
            let bytes = buffer.get_mut(..length as usize).unwrap_or_default();
            file.read_exact_at(bytes, at)?;
            if !is_zero(bytes) {
                let sha256: [u8; 32] = Sha256::digest(&*bytes).into();
                let (pack, offset) = packer.place(&sha256, bytes)?;
                let number = u32::try_from(at / CHUNK).map_err(|_| io::ErrorKind::FileTooLarge)?;
                let entry = Entry {
                    number,
                    pack,
                    offset,
                    sha256,
                };
                map.push(entry).map_err(io::Error::other)?;
            }
            if !watch(length) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            at += length;
        }
    }
    Ok(map)
}

/// Returns the first run of bytes from `at` on that are no hole.
fn data_behind(file: &File, at: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    Ok(Some(start..end.max(start + 1).min(size)))
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// The pack that chunks are written to.
struct Current {
    number: u32,
    writer: Writer<BufWriter<File>>,
    /// Chunks that are not written yet, and how many.
    together: Vec<u8>,
    count: usize,
    /// Bytes of all chunks so far.
    size: u64,
}

struct Packer<'a> {
    known: &'a Known,
    /// Chunks in new packs.
    new: HashMap<[u8; 32], (u32, u64)>,
    /// The number here of a pack that is known.
    numbers: HashMap<usize, u32>,
    /// None for the pack that is being written.
    packs: Vec<Option<(Pack, Option<Arc<File>>)>>,
    current: Option<Current>,
    chunks: Chunks,
    make: &'a dyn Fn() -> io::Result<File>,
}

impl Packer<'_> {
    /// Returns the pack of a chunk, and its offset there. One that no pack has is written.
    fn place(&mut self, sha256: &[u8; 32], bytes: &[u8]) -> io::Result<(u32, u64)> {
        self.chunks.all += 1;
        if let Some(Place { pack, offset }) = self.known.find(sha256, bytes.len() as u64)
            && let Some(number) = self.number(pack)
        {
            self.chunks.of_others += 1;
            return Ok((number, offset));
        }
        if let Some(place) = self.new.get(sha256) {
            self.chunks.repeated += 1;
            return Ok(*place);
        }
        let current = self.current()?;
        let place = (current.number, current.size);
        current.together.extend_from_slice(bytes);
        current.count += 1;
        current.size += bytes.len() as u64;
        let is_full = current.size >= FULL;
        if current.count >= TOGETHER || is_full {
            current.flush()?;
        }
        self.new.insert(*sha256, place);
        if is_full {
            self.end()?;
        }
        Ok(place)
    }

    /// Returns the number here of a known pack; none if half of all numbers are taken, the rest being for new ones.
    fn number(&mut self, pack: usize) -> Option<u32> {
        if let Some(number) = self.numbers.get(&pack) {
            return Some(*number);
        }
        let known = self.known.packs.get(pack)?;
        let number = self.packs.len();
        if number >= MOST_PACKS / 2 {
            return None;
        }
        self.packs.push(Some((known.clone(), None)));
        self.numbers.insert(pack, number as u32);
        Some(number as u32)
    }

    fn current(&mut self) -> io::Result<&mut Current> {
        if self.current.is_none() {
            let number = next(&self.packs)?;
            let out = BufWriter::with_capacity(1 << 20, (self.make)()?);
            self.packs.push(None);
            self.current = Some(Current {
                number,
                writer: Writer::new(out)?,
                together: Vec::new(),
                count: 0,
                size: 0,
            });
        }
        self.current
            .as_mut()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Ends the pack that chunks are written to.
    fn end(&mut self) -> io::Result<()> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        current.flush()?;
        let (mut out, written) = current.writer.finish()?;
        out.flush()?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        let pack = Pack {
            blob: Descriptor {
                media_type: PACK.to_owned(),
                digest: written.digest,
                size: written.size,
            },
            index: written.index.start + FRAME_HEADER..written.index.end,
            index_digest: written.index_digest,
        };
        if let Some(place) = self.packs.get_mut(current.number as usize) {
            *place = Some((pack, Some(Arc::new(file))));
        }
        Ok(())
    }
}

impl Current {
    fn flush(&mut self) -> io::Result<()> {
        self.writer.chunk(&self.together)?;
        self.together.clear();
        self.count = 0;
        Ok(())
    }
}

/// Returns the number of the next pack.
fn next<T>(packs: &[T]) -> io::Result<u32> {
    if packs.len() >= MOST_PACKS {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(packs.len() as u32)
}
