//! Fetches the chunks of a snapshot's files, in ranges of the packs that they are in.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use micabox_chunk::{CHUNK, Index, Map};
use micabox_image::progress::{self, Event, LayerState};
use micabox_image::{Descriptor, Digest, Progress, Reference};
use micabox_lazy::{Fetched, Inflaters};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::local::{CutFile, Local};
use super::packs::{BlobError, Packs, whole};
use super::pull::{Target, unwritten, wrong};
use super::{PACK, Part};
use crate::PullError;
use crate::pull::{blocking, joined};

/// Bytes of a pack that are asked for at once. All of them are in memory before they are checked.
const RANGE: u64 = 4 << 20;

/// Ranges that are fetched at the same time.
const AT_ONCE: usize = 4;

/// What a fetch needs to know of a snapshot.
pub(super) struct Fetch<'a> {
    pub(super) reference: &'a Reference,
    pub(super) packs: Arc<Packs>,
    pub(super) maps: &'a [(Part, Descriptor)],
    /// Most bytes that a file may have beside holes.
    pub(super) most: u64,
    pub(super) progress: &'a Arc<dyn Progress>,
}

/// A file that chunks are written to.
struct Open {
    part: Part,
    file: File,
    path: PathBuf,
    /// Whether an earlier fetch of the same file may have written chunks of it.
    is_left: bool,
}

/// A chunk that is wanted.
#[derive(Clone, Copy)]
struct Wanted {
    pack: u32,
    /// Offset in the pack.
    offset: u64,
    sha256: [u8; 32],
    length: u64,
    /// Which file, and the offset there.
    file: usize,
    at: u64,
}

impl Wanted {
    /// Returns whether its bytes are in their place in a file that an earlier fetch has left.
    fn is_in(&self, open: &Open) -> bool {
        let mut bytes = vec![0; self.length as usize];
        open.is_left
            && open.file.read_exact_at(&mut bytes, self.at).is_ok()
            && Sha256::digest(&bytes)[..] == self.sha256[..]
    }
}

/// Frames that follow each other in a pack, and the chunks in them, by offset.
struct Run {
    pack: usize,
    frames: Range<usize>,
    span: Range<u64>,
    wanted: Vec<Wanted>,
}

/// Why a run's chunks are not written.
enum Failed {
    /// What came is not what was asked for.
    Wrong(String),
    Written(PathBuf, io::Error),
}

impl Fetch<'_> {
    /// Fetches files. On return they are complete, and not synced.
    pub(super) async fn run(
        &self,
        targets: Vec<Target>,
        here: Vec<CutFile>,
    ) -> Result<(), PullError> {
        let mut files = Vec::new();
        let mut wanted = Vec::new();
        for Target {
            file,
            size,
            map: kept,
            is_lazy,
        } in targets
        {
            let map = self.map(file.part, size).await?;
            let bytes = map.to_bytes();
            // An earlier fetch of the same file may have been killed.
            let is_left = fs::read(&kept).is_ok_and(|left| left == bytes);
            let length = || {
                if !is_left {
                    file.file.set_len(0)?;
                }
                file.file.set_len(size)
            };
            length().map_err(|error| unwritten(&file.path, error))?;
            let written = if is_lazy {
                micabox_ground::publish(&kept, &bytes)
            } else {
                fs::write(&kept, &bytes)
            };
            written.map_err(|error| unwritten(&kept, error))?;
            if is_lazy {
                continue;
            }
            wanted.extend(map.entries().iter().map(|entry| {
                let range = map.range(entry);
                Wanted {
                    pack: entry.pack,
                    offset: entry.offset,
                    sha256: entry.sha256,
                    length: range.end - range.start,
                    file: files.len(),
                    at: range.start,
                }
            }));
            files.push(Open {
                part: file.part,
                file: file.file,
                path: file.path,
                is_left,
            });
        }
        let files = Arc::new(files);
        let mut wanted = self.copy(wanted, here, &files).await?;
        wanted.sort_unstable_by_key(|wanted| (wanted.pack, wanted.offset));
        let mut all = Vec::new();
        for wanted in wanted.chunk_by(|a, b| a.pack == b.pack) {
            let number = wanted.first().map_or(0, |wanted| wanted.pack as usize);
            let index = self.packs.index(number).await;
            let index = Arc::new(index.map_err(|error| self.of_pack(number, error))?);
            let runs = runs(number, &index, wanted);
            let runs = runs.map_err(|problem| self.of_pack(number, BlobError::Wrong(problem)))?;
            all.push((index, runs));
        }
        self.fetch(all, files).await
    }

    /// Writes the chunks that files here have, unless they are in their places already. Returns the others.
    async fn copy(
        &self,
        wanted: Vec<Wanted>,
        here: Vec<CutFile>,
        files: &Arc<Vec<Open>>,
    ) -> Result<Vec<Wanted>, PullError> {
        if here.is_empty() && !files.iter().any(|file| file.is_left) {
            return Ok(wanted);
        }
        let files = Arc::clone(files);
        blocking(move || {
            let local = Local::of(&here);
            let mut missing = Vec::new();
            for one in wanted {
                let file = files.get(one.file);
                if file.is_some_and(|file| one.is_in(file)) {
                    continue;
                }
                let chunk = local.read(&one.sha256, one.length);
                let Some((chunk, Open { file, path, .. })) = chunk.zip(file) else {
                    missing.push(one);
                    continue;
                };
                let written = file.write_all_at(&chunk, one.at);
                written.map_err(|error| unwritten(path, error))?;
            }
            Ok(missing)
        })
        .await
    }

    /// Fetches and checks the map of a file that is to have `size` bytes.
    async fn map(&self, part: Part, size: u64) -> Result<Map, PullError> {
        let lies =
            |problem: String| wrong(self.reference, format!("its map of the {part}: {problem}"));
        let map = self.maps.iter().find(|(other, _)| *other == part);
        let Some((_, blob)) = map else {
            return Err(lies("it has none".to_owned()));
        };
        if blob.size > Map::longest(size) {
            return Err(lies(format!(
                "it has {} bytes, more than a file of {size} bytes needs",
                blob.size
            )));
        }
        let bytes = whole(&self.packs.repository, blob).await;
        let bytes = bytes.map_err(|error| match error {
            BlobError::Registry(error) => error.into(),
            error => lies(format!("blob {}: {error}", blob.digest)),
        })?;
        let count = (0..)
            .take_while(|number| self.packs.get(*number).is_some())
            .count();
        let map = blocking(move || Map::parse(&bytes, count)).await;
        let map = map.map_err(|error| lies(error.to_string()))?;
        if map.size() != size {
            let problem = format!("it is of {} bytes, and its config says {size}", map.size());
            return Err(lies(problem));
        }
        let bytes = map.entries().len() as u64 * CHUNK;
        if bytes > self.most {
            return Err(lies(format!(
                "it has {bytes} bytes: more than limits.layer-size = {} allows",
                self.most
            )));
        }
        Ok(map)
    }

    /// Fetches runs, a few at a time.
    async fn fetch(
        &self,
        all: Vec<(Arc<Index>, Vec<Run>)>,
        files: Arc<Vec<Open>>,
    ) -> Result<(), PullError> {
        let spans = all
            .iter()
            .flat_map(|(_, runs)| runs)
            .map(|run| run.span.end - run.span.start);
        let id = self
            .maps
            .first()
            .map_or_else(|| Digest::of(b""), |(_, map)| map.digest);
        let blob = Descriptor {
            media_type: PACK.to_owned(),
            digest: id,
            size: spans.sum(),
        };
        self.progress
            .event(Event::Layers(&[progress::Layer { diff_id: id, blob }]));
        let inflaters = Arc::new(Inflaters::default());
        let (slots, done) = (
            Arc::new(Semaphore::new(AT_ONCE)),
            Arc::new(AtomicU64::new(0)),
        );
        let mut tasks = JoinSet::new();
        for (index, runs) in all {
            for run in runs {
                let (packs, slots, index) = (
                    Arc::clone(&self.packs),
                    Arc::clone(&slots),
                    Arc::clone(&index),
                );
                let (files, inflaters) = (Arc::clone(&files), Arc::clone(&inflaters));
                let (progress, done) = (Arc::clone(self.progress), Arc::clone(&done));
                tasks.spawn(async move {
                    // The semaphore is never closed.
                    let _slot = slots.acquire_owned().await;
                    let number = run.pack;
                    let length = run.span.end - run.span.start;
                    let fetched = packs.part(number, run.span.clone()).await;
                    let Fetched { bytes, from } = fetched.map_err(|error| (number, Ok(error)))?;
                    let written = blocking(move || run.write(&index, &bytes, &inflaters, &files));
                    written.await.map_err(|failed| match failed {
                        Failed::Wrong(problem) => (
                            number,
                            Err(Failed::Wrong(format!("{problem}, from {from}"))),
                        ),
                        failed @ Failed::Written(..) => (number, Err(failed)),
                    })?;
                    let bytes = done.fetch_add(length, Ordering::Relaxed) + length;
                    let state = LayerState::Received { bytes };
                    progress.event(Event::Layer {
                        diff_id: &id,
                        state,
                    });
                    Ok::<_, (usize, Result<BlobError, Failed>)>(())
                });
            }
        }
        // The first error drops the other tasks.
        while let Some(ended) = tasks.join_next().await {
            joined(ended).map_err(|(number, error)| match error {
                Ok(error) => self.of_pack(number, error),
                Err(Failed::Wrong(problem)) => self.of_pack(number, BlobError::Wrong(problem)),
                Err(Failed::Written(path, error)) => unwritten(&path, error),
            })?;
        }
        self.progress.event(Event::Layer {
            diff_id: &id,
            state: LayerState::Done,
        });
        Ok(())
    }

    fn of_pack(&self, number: usize, error: BlobError) -> PullError {
        match error {
            BlobError::Registry(error) => error.into(),
            error => {
                let digest = self.packs.get(number).map(|pack| pack.blob.digest);
                let digest = digest.map_or_else(String::new, |digest| digest.to_string());
                wrong(self.reference, format!("pack {digest}: {error}"))
            }
        }
    }
}

/// Groups the chunks of a pack, which are in ascending order, by the frames to fetch for them.
fn runs(pack: usize, index: &Index, wanted: &[Wanted]) -> Result<Vec<Run>, String> {
    let lies = || "a map names bytes that it does not have in one frame".to_owned();
    let mut runs: Vec<Run> = Vec::new();
    for one in wanted {
        let frame = index.find(one.offset).ok_or_else(lies)?;
        let (contents, span) = index
            .contents(frame)
            .zip(index.range(frame))
            .ok_or_else(lies)?;
        // `Map::parse` checks that it is a number.
        if one.offset + one.length > contents.end {
            return Err(lies());
        }
        match runs.last_mut() {
            Some(run) if run.frames.end == frame + 1 => run.wanted.push(*one),
            Some(run) if run.frames.end == frame && span.end - run.span.start <= RANGE => {
                run.frames.end = frame + 1;
                run.span.end = span.end;
                run.wanted.push(*one);
            }
            _ => runs.push(Run {
                pack,
                frames: frame..frame + 1,
                span,
                wanted: vec![*one],
            }),
        }
    }
    Ok(runs)
}

impl Run {
    /// Checks and inflates frames, whose bytes are `bytes`, and writes the chunks in them.
    fn write(
        &self,
        index: &Index,
        bytes: &[u8],
        inflaters: &Inflaters,
        files: &[Open],
    ) -> Result<(), Failed> {
        let wrong = |problem: String| Failed::Wrong(problem);
        let short = || Failed::Wrong("a range of it is short".to_owned());
        let mut wanted = self.wanted.iter().peekable();
        for frame in self.frames.clone() {
            let (contents, span) = index
                .contents(frame)
                .zip(index.range(frame))
                .ok_or_else(short)?;
            let within =
                (span.start - self.span.start) as usize..(span.end - self.span.start) as usize;
            let packed = bytes.get(within).ok_or_else(short)?;
            index
                .verify(frame, packed)
                .map_err(|error| wrong(error.to_string()))?;
            let inflated = inflaters.inflate(packed, contents.end - contents.start);
            let inflated = inflated.map_err(|error| wrong(format!("frame {frame}: {error}")))?;
            while let Some(one) = wanted.next_if(|one| one.offset < contents.end) {
                let start = (one.offset - contents.start) as usize;
                let chunk = inflated
                    .get(start..start + one.length as usize)
                    .ok_or_else(short)?;
                let Open {
                    part, file, path, ..
                } = files.get(one.file).ok_or_else(short)?;
                if Sha256::digest(chunk)[..] != one.sha256[..] {
                    return Err(wrong(format!(
                        "the chunk at {} of the {part} has other bytes than its map says",
                        one.at
                    )));
                }
                let written = file.write_all_at(chunk, one.at);
                written.map_err(|error| Failed::Written(path.clone(), error))?;
            }
        }
        Ok(())
    }
}
