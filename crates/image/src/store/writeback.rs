//! Puts a large file on the disk while it is still being written, so that the final fsync
//! has little left to wait for.

use std::fs::File;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// How much is written before the disk gets to work on it. Small files never see a thread.
const STEP: u64 = 32 << 20;

/// The writer of one file, as far as the disk is concerned.
#[derive(Default)]
pub(super) struct Writeback {
    /// Bytes since the last step.
    pending: u64,
    thread: Option<Thread>,
}

struct Thread {
    wake: SyncSender<()>,
    handle: JoinHandle<io::Result<()>>,
}

impl Writeback {
    /// Takes note of `count` bytes written to `file`.
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
        // A disk that still has to do takes the new bytes along.
        let _ = thread.wake.try_send(());
        Ok(())
    }

    /// Waits for the thread. The file may not be on the disk yet.
    ///
    /// # Errors
    ///
    /// What the disk said: the kernel tells an error once, so a later sync would succeed.
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
