//! The process that serves a memory of which only a part is here, until it is whole and no machine uses its file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use micabox_erofs::ReadAt;
use micabox_ground::chain;
use micabox_holders::own_process::{self, Environment};
use micabox_holders::served::{self, Mount, Served, Work, has_room};
use micabox_holders::{Done, start_process};
use micabox_image::Store;
use micabox_jail::Kind;
use micabox_layerfs::Source;
use micabox_lazy::{AHEAD_ROOM, Ahead, PartFile};
use micabox_state::note_image;
use serde::{Deserialize, Serialize};

use super::open::Opened;
use super::order;

/// The kind of process that serves memories.
pub const KIND: Kind = Kind::new(NAME, work);

const NAME: &str = "memory";

/// Whose memory it serves.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// The snapshot.
    pub(super) name: String,
    /// The file that is expected.
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Whether it becomes whole meanwhile.
    pub(super) completes_in_background: bool,
}

/// Starts the process, and waits until it serves clients.
pub(super) fn start(
    job: &served::Job<Job>,
    environment: Environment,
    lock: &File,
    listener: UnixListener,
) -> io::Result<Done> {
    let files = Vec::new();
    start_process(NAME, "mica-memory", environment, job, lock, listener, files)
}

fn work(_: RawFd) -> i32 {
    let ran = served::run(serve);
    own_process::end();
    i32::from(ran.is_err())
}

fn serve(job: &served::Job<Job>) -> Result<(Served<Memory>, Work), String> {
    let text = |error: &dyn std::error::Error| chain(error);
    let mount = Mount::new(true).map_err(|error| text(&error))?;
    let store = Store::open(&job.store).map_err(|error| text(&error))?;
    let opened = Opened::of(&store, &job.of.name).map_err(|error| text(&error))?;
    let metadata = opened.file.file().metadata();
    let metadata = metadata.map_err(|error| text(&error))?;
    if (metadata.dev(), metadata.ino()) != (job.of.device, job.of.inode) {
        return Err("another snapshot has its name now".to_owned());
    }
    let notes = Arc::new(Notes {
        store: job.store.clone(),
        base: opened.snapshot.base.to_string(),
        snapshot: opened.snapshot.name.clone(),
        has_failed: AtomicBool::new(false),
    });
    let memory = Memory {
        file: Arc::clone(&opened.file),
        failed: AtomicU64::new(NOWHERE),
    };
    let noted = Arc::clone(&notes);
    let failed = move |_, error: &io::Error| noted.read_error(error);
    let served = Served::new(Ok(mount), &job.directory, vec![memory], failed);
    let served = served.map_err(|error| text(&error))?;
    if let Some(order) = order::of(&opened.snapshot.directory) {
        let (file, root) = (Arc::clone(&opened.file), job.store.clone());
        // A read of the chunk fails with the reason.
        Ahead::begin(&order, move |_, chunks| {
            has_room(&root, AHEAD_ROOM) && file.prefetch(chunks).is_ok()
        });
    }
    let completes_in_background = job.of.completes_in_background;
    let opened = Arc::new(opened);
    let noted = Arc::clone(&opened);
    let complete = move || {
        if !completes_in_background {
            return;
        }
        let here = metadata.blocks().saturating_mul(512);
        let missing = opened.file.all_bytes().saturating_sub(here);
        // Without the rest, it stays as it is.
        if has_room(store.root(), missing)
            && let Err(error) = opened.complete(&|_, _| true)
        {
            notes.note("incomplete", chain(&error));
        }
    };
    let work = Work {
        // Without it, a later start is slower.
        note: Arc::new(move || _ = order::keep(&noted)),
        complete: Box::new(complete),
    };
    Ok((served, work))
}

/// Notes why what is missing can't be had, where `mica events` shows it.
struct Notes {
    store: PathBuf,
    /// What the snapshot is of.
    base: String,
    snapshot: String,
    /// Whether the first read that failed was noted.
    has_failed: AtomicBool,
}

impl Notes {
    fn read_error(&self, error: &io::Error) {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            self.note("read_error", chain(error));
        }
    }

    fn note(&self, action: &str, error: String) {
        let attributes = [("snapshot", self.snapshot.clone()), ("error", error)];
        note_image(&self.store, &self.base, action, &attributes);
    }
}

/// The memory as a file.
struct Memory {
    file: Arc<PartFile>,
    /// Where the last read failed; [`u64::MAX`] if none has, or if it could be read since.
    failed: AtomicU64,
}

/// A place where no read fails.
const NOWHERE: u64 = u64::MAX;

impl ReadAt for Memory {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.file.read_exact_at(buffer, offset);
        if read.is_err() {
            self.failed.store(offset, Ordering::Relaxed);
        }
        read
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
}

impl Source for Memory {
    /// Fails while what was read last without success can't be read: machines ask, as a processor may wait for it without
    /// end.
    fn data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let failed = self.failed.load(Ordering::Relaxed);
        if failed != NOWHERE {
            self.file.read_exact_at(&mut [0], failed)?;
            let relaxed = Ordering::Relaxed;
            let _ = self
                .failed
                .compare_exchange(failed, NOWHERE, relaxed, relaxed);
        }
        Ok(self.file.data(offset))
    }
}
