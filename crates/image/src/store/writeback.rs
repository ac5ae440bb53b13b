//! Writes a large file back to the disk while it is still being written, so that the final fsync
//! is short.

use std::fs::File;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Bytes between two writebacks. Small files never start a thread.
const STEP: u64 = 32 << 20;

/// Starts writebacks of one file.
#[derive(Default)]
pub(super) struct Writeback {
    /// Bytes since the last writeback.
    pending: u64,
    thread: Option<Thread>,
}

struct Thread {
    wake: SyncSender<()>,
    handle: JoinHandle<io::Result<()>>,
}

impl Writeback {
    /// Counts `count` bytes written to `file`.
    pub fn written(&mut self, file: &File, count: u64) -> io::Result<()> {
        self.pending += count;
        if self.pending < STEP {
            return Ok(());
        }
        self.pending = 0;
        let thread = match &self.thread {
            Some(thread) => thread,
            None => self.thread.insert(Thread::start(file.try_clone()?)?),
        };
        // A writeback that hasn't started yet includes the new bytes.
        let _ = thread.wake.try_send(());
        Ok(())
    }

    /// Waits for the thread. The file may not be on the disk yet.
    ///
    /// # Errors
    ///
    /// Any error of the disk: the kernel reports an error once, so a later sync would succeed.
    pub fn finish(&mut self) -> io::Result<()> {
        let Some(Thread { wake, handle }) = self.thread.take() else {
            return Ok(());
        };
        drop(wake);
        handle
            .join()
            .unwrap_or_else(|payload| std::panic::resume_unwind(payload))
    }
}

impl Thread {
    fn start(file: File) -> io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let handle = Builder::new()
            .name("layer-sync".into())
            .spawn(move || woken.iter().try_for_each(|()| file.sync_data()))?;
        Ok(Self { wake, handle })
    }
}
