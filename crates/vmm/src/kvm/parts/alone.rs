//! Served files as a machine has them, without a machine: for tests, and to measure.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use micabox_ground::lock;
use vm_memory::{VolatileMemory, mmap::MmapRegion};

use super::userfault::{self, Userfault};
use super::{Line, Pager, PartReader, outside};
use crate::kvm::Thread;
use crate::kvm::memory::region::map;
use crate::{MachineFile, PartServers};

/// A served file as the memory of a region.
#[derive(Debug)]
pub struct Mapped {
    region: MmapRegion,
    failed: Mutex<Receiver<String>>,
}

impl Mapped {
    /// Maps a file. Its memory and its thread stay as long as the process.
    ///
    /// # Errors
    /// Those of userfaultfd, and of the server.
    pub fn new(servers: Arc<dyn PartServers>, file: &MachineFile) -> io::Result<Self> {
        let access = userfault::find().map_err(|lack| io::Error::other(lack.to_string()))?;
        let line = line(servers, file)?;
        let region = map(std::slice::from_ref(file), |_| true).map_err(io::Error::other)?;
        let mut pager = Pager::new(Userfault::new(access)?, line, file.length());
        pager.add(region.as_ptr() as usize, file)?;
        let (sender, failed) = channel();
        let run = move || pager.run(|reason| _ = sender.send(reason));
        std::thread::Builder::new()
            .name("pager".into())
            .spawn(run)?;
        let failed = Mutex::new(failed);
        Ok(Self { region, failed })
    }

    /// Reads from the memory. What can't be had is waited for without end.
    pub fn read(&self, offset: usize, buffer: &mut [u8]) {
        if let Ok(slice) = self.region.get_slice(offset, buffer.len()) {
            slice.copy_to(buffer);
        }
    }

    /// Waits until a piece can't be had. Returns why.
    pub fn failure(&self) -> Option<String> {
        lock(&self.failed).recv().ok()
    }
}

/// A served file as a disk, which a thread reads.
#[derive(Debug)]
pub struct Disk {
    wanted: Sender<Range<u64>>,
    read: Mutex<Receiver<io::Result<Vec<u8>>>>,
}

impl Disk {
    /// Opens a file.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if it is not served; those of threads and sockets.
    pub fn new(servers: Arc<dyn PartServers>, file: &MachineFile) -> io::Result<Self> {
        let part = file.part().ok_or(io::ErrorKind::InvalidInput)?;
        let reader = PartReader::new(&line(servers, file)?, part);
        let (wanted, asked) = channel::<Range<u64>>();
        let (sender, read) = channel();
        start(Thread::Disk, move || {
            for bytes in asked {
                let read = read_bytes(&reader, &bytes);
                if sender.send(read).is_err() {
                    return;
                }
            }
        })?;
        let read = Mutex::new(read);
        Ok(Self { wanted, read })
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// Why they can't be had.
    pub fn read(&self, bytes: Range<u64>) -> io::Result<Vec<u8>> {
        let read = lock(&self.read);
        self.wanted.send(bytes).map_err(io::Error::other)?;
        read.recv().map_err(io::Error::other)?
    }
}

fn read_bytes(reader: &PartReader, bytes: &Range<u64>) -> io::Result<Vec<u8>> {
    let file = reader.file_with(bytes)?;
    let length = bytes.end.saturating_sub(bytes.start);
    let mut buffer = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut buffer, bytes.start)?;
    Ok(buffer)
}

/// Starts a thread that may do what a machine's may, and nothing else.
fn start(kind: Thread, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (sender, restricted) = channel();
    let run = move || {
        let is_restricted = kind.restrict().map_err(io::Error::other);
        let goes_on = is_restricted.is_ok();
        let _ = sender.send(is_restricted);
        if goes_on {
            work();
        }
    };
    std::thread::Builder::new().spawn(run)?;
    restricted.recv().map_err(io::Error::other)?
}

fn line(servers: Arc<dyn PartServers>, file: &MachineFile) -> io::Result<Line> {
    let names = file.part().map(|part| part.server.clone());
    outside::open(servers, names.into_iter().collect()).map(Line::new)
}
