//! A filesystem's file, and paths within it.

use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use micabox::Notes;
use micabox_ground::locked::{Locked, Mode};

use crate::commands::notes;
use micabox_program::failure::Failure;
use micabox_program::output::write_stderr;
use micabox_program::visible;

/// Makes a failure of an error and its file.
pub fn about<E: std::error::Error + 'static>(path: &Path) -> impl Fn(E) -> Failure {
    move |error| Failure::of(&error).context(&visible::path(path))
}

/// Opens a file to read the filesystem in it.
pub fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(about(path))
}

/// Prints notes about a filesystem that was read.
pub fn print_notes(found: &Notes, path: &Path) {
    if found.damaged {
        write_stderr(&format!(
            "mica: {}: marked as having errors: the result may be incomplete; `mica ext4 \
             replay` clears the mark if nothing is wrong\n",
            visible::path(path)
        ));
    }
    notes::print_sockets(found);
}

/// A filesystem's file, open and locked for writing.
pub struct Writable(Locked);

impl Writable {
    /// Opens and locks an existing file.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(about(path))?;
        // Two writers would damage the filesystem. A virtual machine's disk is locked, too.
        let locked = Locked::attempt(file, Mode::Exclusive).ok().flatten();
        let in_use = || format!("cannot write to `{}`: it is in use", visible::path(path));
        Ok(Self(locked.ok_or_else(|| Failure::new(in_use()))?))
    }

    /// Returns the file again, to give to a worker.
    pub fn file(&self) -> Result<File, Failure> {
        self.0
            .file()
            .try_clone()
            .map_err(|error| Failure::of(&error))
    }
}

/// Returns a path within a filesystem as bytes.
pub fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
