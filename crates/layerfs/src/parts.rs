//! Sources as sparse files: what was asked for is read from its source once, written to its place, and stays there.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use micabox_ground::lock;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::pieces::{MOST, PIECE, Pieces, count};
use crate::{Files, Source};

/// How long to wait for room on a full disk before a piece is written again.
const PAUSE: Duration = Duration::from_millis(250);

/// The sparse files of some sources. Each is made when it is opened first, has no name, and ends with the last descriptor
/// of it. Only this process writes to it, and only what its source has returned: what is in it needs no second check.
pub struct Parts<S> {
    of: Arc<Files<S>>,
    /// Where the files are made.
    directory: PathBuf,
    files: Vec<Mutex<Option<Arc<Part>>>>,
    asked: AtomicU64,
}

/// A sparse file.
pub(crate) struct Part {
    bytes: Unnamed,
    /// Which pieces are here, as [`Pieces`] has them.
    present: Unnamed,
    size: u64,
    state: Mutex<State>,
    brought: Condvar,
}

struct State {
    here: Pieces,
    /// Those that a thread brings now.
    under_way: BTreeSet<u32>,
}

impl<S: Source> Parts<S> {
    /// Makes sparse files of these in a directory, none yet.
    pub fn new(of: Arc<Files<S>>, directory: &Path) -> Self {
        let files = (0..of.len()).map(|_| Mutex::default()).collect();
        Self {
            of,
            directory: directory.to_owned(),
            files,
            asked: AtomicU64::new(0),
        }
    }

    /// Returns how often pieces were asked for.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Opens a file, which is made if there is none.
    pub(crate) fn open(&self, number: u32) -> io::Result<Arc<Part>> {
        let number = number as usize;
        let slot = self.files.get(number).ok_or(io::ErrorKind::NotFound)?;
        let mut slot = lock(slot);
        if let Some(part) = &*slot {
            return Ok(Arc::clone(part));
        }
        let size = self.of.size(number).ok_or(io::ErrorKind::NotFound)?;
        let part = Arc::new(Part::make(&self.directory, number, size)?);
        *slot = Some(Arc::clone(&part));
        Ok(part)
    }

    /// Brings pieces of a file that was opened. Returns the run of pieces that are here and has the first of them, of
    /// [`MOST`] at most. Waits for room on a full disk: a machine would end by such an error.
    ///
    /// # Errors
    ///
    /// The source's, if the first one can't be had; those of writing it; [`io::ErrorKind::InvalidInput`] for pieces that
    /// the file does not have.
    pub(crate) fn bring(&self, number: u32, pieces: &Range<u32>) -> io::Result<Range<u32>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let slot = self.files.get(number as usize);
        let part = slot.and_then(|slot| lock(slot).clone());
        let part = part.ok_or(io::ErrorKind::InvalidInput)?;
        let is_there = !pieces.is_empty() && pieces.end <= count(part.size);
        if !is_there || pieces.end - pieces.start > MOST {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for piece in pieces.clone() {
            match self.bring_one(number as usize, &part, piece) {
                Ok(()) => {}
                Err(error) if piece == pieces.start => return Err(error),
                // Who asks for this one gets the reason.
                Err(_) => break,
            }
        }
        let state = lock(&part.state);
        Ok(state.here.run(pieces.start))
    }

    fn bring_one(&self, number: usize, part: &Part, piece: u32) -> io::Result<()> {
        {
            let mut state = lock(&part.state);
            while state.under_way.contains(&piece) {
                state = lock::ignore_poison(part.brought.wait(state));
            }
            if state.here.has(piece) {
                return Ok(());
            }
            state.under_way.insert(piece);
        }
        let written = self.write(number, part, piece);
        let mut state = lock(&part.state);
        state.under_way.remove(&piece);
        let written = written.and_then(|()| {
            state.here.add(piece);
            // Clients look there without asking, so that this is the last step.
            let (at, byte) = state.here.byte(piece);
            let written = part.present.file.write_all_at(&[byte], at);
            written.map_err(|error| self.unkept(&error))
        });
        drop(state);
        part.brought.notify_all();
        written
    }

    fn write(&self, number: usize, part: &Part, piece: u32) -> io::Result<()> {
        let start = u64::from(piece) * PIECE;
        let length = PIECE.min(part.size.saturating_sub(start));
        let mut bytes = vec![0; length as usize];
        self.of.read_source(number, &mut bytes, start)?;
        // A hole has the same bytes.
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let mut is_reported = false;
        loop {
            match part.bytes.keep(&bytes, start) {
                Err(error) if is_full(&error) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        self.of.report(number, &self.unkept(&error));
                    }
                    thread::sleep(PAUSE);
                }
                kept => return kept.map_err(|error| self.unkept(&error)),
            }
        }
    }

    fn unkept(&self, error: &io::Error) -> io::Error {
        let problem = format!("it can't be kept in {}: {error}", self.directory.display());
        io::Error::new(error.kind(), problem)
    }
}

impl Part {
    fn make(directory: &Path, number: usize, size: u64) -> io::Result<Self> {
        let name = |kind| directory.join(format!("{kind}-{number}"));
        let here = Pieces::none(size);
        let present = Unnamed::make(&name("present"), here.bytes())?;
        // Its bits never lack room.
        present.allocate(0, here.bytes())?;
        Ok(Self {
            bytes: Unnamed::make(&name("part"), size)?,
            present,
            size,
            state: Mutex::new(State {
                here,
                under_way: BTreeSet::new(),
            }),
            brought: Condvar::new(),
        })
    }

    /// Returns what a client gets: the sparse file, and the one that has which pieces are here.
    pub(crate) fn readable(&self) -> [&File; 2] {
        [&self.bytes.readable, &self.present.readable]
    }
}

/// A file without a name, with a descriptor for others.
struct Unnamed {
    file: File,
    readable: File,
}

impl Unnamed {
    /// Makes one of zeros. It has the name for a moment, so that there is a descriptor that can't write to it.
    fn make(path: &Path, size: u64) -> io::Result<Self> {
        // A server that was killed may have left it.
        let _ = std::fs::remove_file(path);
        let mut options = File::options();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(path)?;
        let readable = File::open(path);
        std::fs::remove_file(path)?;
        file.set_len(size)?;
        let readable = readable?;
        Ok(Self { file, readable })
    }

    /// Writes bytes to a place that has room on the disk from then on: what is written back later can't lack it, and be
    /// lost.
    fn keep(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.allocate(offset, bytes.len() as u64)?;
        self.file.write_all_at(bytes, offset)
    }

    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, length) {
            // The filesystem has no such call.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            allocated => Ok(allocated?),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

impl<S> std::fmt::Debug for Parts<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
