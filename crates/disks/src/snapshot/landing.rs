//! The files of a snapshot that comes from a registry, before they are filled.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use micabox_error::Error;

use super::DISK;
use super::left;
use super::names::{MACHINE, MANIFEST, MEMORY, ORDER, PART, map_of};

/// A file that is to be filled.
#[derive(Debug)]
pub struct Landing {
    /// The file, which is empty, or has what a pull left that was killed.
    pub file: File,
    /// Its path, for errors.
    pub path: PathBuf,
    /// How many bytes it is to have.
    pub size: u64,
    /// Where its map is kept, if it has one.
    pub map: PathBuf,
    /// What is kept beside it if nothing but the map is to be fetched of it now.
    pub beside: Option<Beside>,
}

/// Where things are kept beside a memory that comes later.
#[derive(Debug)]
pub struct Beside {
    /// The snapshot's manifest.
    pub manifest: PathBuf,
    /// The order in which an earlier start read it.
    pub order: PathBuf,
}

/// The files that are to be filled.
#[derive(Debug)]
pub struct Landings {
    /// The disk.
    pub disk: Option<Landing>,
    /// The memory.
    pub memory: Option<Landing>,
    /// The state of the machine.
    pub machine: Option<Landing>,
}

impl Landings {
    /// Makes files of these sizes in a directory, or opens those that a pull left that was killed: of the disk, the memory
    /// and the state of the machine. With `is_lazy`, nothing but the map is to be fetched of the memory now.
    pub(super) fn new(
        directory: &Path,
        [disk, memory, machine]: [Option<u64>; 3],
        is_lazy: bool,
    ) -> Result<Self, Error> {
        let land = |name: &str, size: Option<u64>| {
            let size = size.map(|size| land(&directory.join(name), size));
            size.transpose()
        };
        let (name, other) = if is_lazy {
            (PART, MEMORY)
        } else {
            (MEMORY, PART)
        };
        left::rename(directory, other, name)?;
        let mut memory = land(name, memory)?;
        if let Some(memory) = memory.as_mut().filter(|_| is_lazy) {
            memory.beside = Some(Beside {
                manifest: directory.join(MANIFEST),
                order: directory.join(ORDER),
            });
        }
        Ok(Self {
            disk: land(DISK, disk)?,
            memory,
            machine: land(MACHINE, machine)?,
        })
    }
}

fn land(path: &Path, size: u64) -> Result<Landing, Error> {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    Ok(Landing {
        file: options
            .mode(0o600)
            .open(path)
            .map_err(Error::state("making", path))?,
        path: path.to_owned(),
        size,
        map: map_of(path),
        beside: None,
    })
}
