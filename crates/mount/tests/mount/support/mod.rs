//! Filesystems that tests mount, as root.

pub mod compare;
pub mod operation;
pub mod switch;
pub mod tree;

use std::path::Path;
use std::sync::Arc;
use std::thread::{JoinHandle, spawn};

use micabox_mount::{Cache, Error, Filesystem, Limits, Place, Shown, Tree, Usage};
use micabox_testing::wait_until;
use tempfile::TempDir;

/// A filesystem in memory that this process serves.
pub struct Memory {
    pub files: Arc<Filesystem>,
    place: Arc<Place>,
    server: Option<JoinHandle<Result<(), Error>>>,
    directory: TempDir,
}

fn empty(bytes: u64, inodes: u64) -> Filesystem {
    Filesystem::new(Limits { bytes, inodes }, 0o755, 0, 0)
}

impl Memory {
    pub fn mount(bytes: u64, inodes: u64, cache: Cache) -> Self {
        Self::serve(empty(bytes, inodes), cache)
    }

    /// Has requests come over io_uring while the kernel offers it.
    pub fn mount_with_queues(bytes: u64, inodes: u64, cache: Cache) -> Self {
        Self::start(empty(bytes, inodes), move |files| {
            Tree::new(files, cache).with_queues()
        })
    }

    pub fn serve(files: Filesystem, cache: Cache) -> Self {
        Self::start(files, move |files| Tree::new(files, cache))
    }

    fn start(
        files: Filesystem,
        tree: impl FnOnce(&Filesystem) -> Tree<'_> + Send + 'static,
    ) -> Self {
        let directory = TempDir::new().unwrap();
        let files = Arc::new(files);
        let shown = Shown::Memory { is_foreign: false };
        let place = Arc::new(Place::mount(directory.path(), false, shown).unwrap());
        let server = {
            let (files, channels) = (Arc::clone(&files), place.channels().unwrap());
            spawn(move || tree(&files).serve(channels))
        };
        Self {
            files,
            place,
            server: Some(server),
            directory,
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Waits until all that was removed has given back what it took: the kernel forgets inodes later.
    pub fn wait_until_empty(&self) {
        let none = Usage {
            bytes: 0,
            inodes: 0,
        };
        wait_until("nothing is taken", || self.files.usage() == none);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.place.unmount();
        let server = self.server.take().unwrap();
        // If a test has failed, something may still be open there.
        if !std::thread::panicking() {
            server.join().unwrap().unwrap();
        }
    }
}
