//! Filesystems in disk images: in the formats of virtual machines, and on partitions. A worker copies them to a
//! sparse file without a name, which is the root disk for as long as a process has it open.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use micabox_error::DiskProblem;
use micabox_ground::chain;
use micabox_image::Store;
use rustix::fs::OFlags;

use crate::root_disk::{is_dirty_ext4, starts};
use crate::{CallError, NoFilesystem, Unwrap};

/// Most bytes of such a filesystem; the worker bounds what it writes by the image's length as well.
const LARGEST: u64 = micabox_disk::LARGEST;

/// Offset and bytes of what marks such an image.
const MARKS: [(u64, &[u8]); 5] = [
    (0, b"QFI\xfb"),
    (0, b"KDMV"),
    (512, b"EFI PART"),
    (4096, b"EFI PART"),
    (510, b"\x55\xaa"),
];

/// A filesystem that was taken out of an image.
#[derive(Debug)]
pub struct Unwrapped {
    /// Open for reading.
    pub file: File,
    pub partition: Option<u32>,
}

/// Returns whether a file may be a disk image, and not a filesystem.
pub fn is_wrapped(file: &File) -> bool {
    let mut marks = MARKS.iter();
    marks.any(|(offset, bytes)| starts(file, *offset, bytes))
}

/// Takes a filesystem out of the image at `path`. A journal with changes is replayed in the copy.
pub fn unwrap(image: &File, path: &Path, partition: Option<u32>) -> Result<Unwrapped, DiskProblem> {
    let unusable = |error: &dyn std::fmt::Display| DiskProblem::Unusable(error.to_string());
    let image = image.try_clone().map_err(|error| unusable(&error))?;
    let copy = scratch(path).map_err(|error| unusable(&error))?;
    let output = copy.try_clone().map_err(|error| unusable(&error))?;
    let done = crate::call(&Unwrap { partition }, image, vec![output], LARGEST);
    let partition = done.map_err(|error| match error {
        CallError::Refused(NoFilesystem::Image(image, why)) => DiskProblem::Image(image, why),
        CallError::Refused(error @ NoFilesystem::Contents(..)) => {
            DiskProblem::Contents(error.to_string())
        }
        CallError::Refused(NoFilesystem::Partitions(why)) => DiskProblem::Partitions(why),
        CallError::Refused(NoFilesystem::Output(why)) => {
            DiskProblem::Unusable(format!("copying the filesystem out of it: {why}"))
        }
        error => DiskProblem::Unusable(chain(&error)),
    })?;
    if is_dirty_ext4(&copy) {
        let file = copy.try_clone().map_err(|error| unusable(&error))?;
        crate::ext4::replay(file).map_err(|error| DiskProblem::Unusable(chain(&error)))?;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let again = format!("/proc/self/fd/{}", copy.as_raw_fd());
    let file = rustix::fs::open(again, flags, rustix::fs::Mode::empty());
    Ok(Unwrapped {
        file: file.map_err(|error| unusable(&error))?.into(),
        partition,
    })
}

/// Makes a file without a name: where the store is, or beside the image.
fn scratch(path: &Path) -> std::io::Result<File> {
    let store = Store::default_root().ok();
    let in_store = store.map(tempfile::tempfile_in);
    match in_store {
        Some(Ok(file)) => Ok(file),
        _ => tempfile::tempfile_in(path.parent().unwrap_or(Path::new("/"))),
    }
}
