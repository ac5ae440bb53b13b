//! Maps files back to back, as one pmem region.

#![allow(unsafe_code)]

use std::io;

use vm_memory::mmap::{MmapRegion, MmapRegionError};

use crate::MachineFile;

/// Why a region can't be mapped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("reserving {size} bytes of address space: {source}")]
    Reserve { size: u64, source: io::Error },
    #[error("mapping file {index} of a pmem region: {source}")]
    Map { index: usize, source: io::Error },
    #[error("{0}")]
    Region(#[from] MmapRegionError),
}

const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Maps the files, of whole pages, one after the other, shared and read-only.
///
/// The whole range is reserved first, and every file replaces its part of the reservation, so that
/// no other mapping can end up in between. In the place of a file that a pager has, there is memory that can be read, for
/// the pager to fill before anything reads it.
pub(crate) fn map(
    files: &[MachineFile],
    is_paged: impl Fn(&MachineFile) -> bool,
) -> Result<MmapRegion, Error> {
    let total = files
        .iter()
        .fold(0_u64, |sum, file| sum.saturating_add(file.length()));
    let size = usize::try_from(total).unwrap_or(usize::MAX);
    // SAFETY: a new mapping, where the kernel chooses; nothing is overwritten.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, FLAGS, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(Error::Reserve {
            size: total,
            source: io::Error::last_os_error(),
        });
    }
    let mut offset = 0_usize;
    for (index, file) in files.iter().enumerate() {
        let length = usize::try_from(file.length()).unwrap_or(usize::MAX);
        let (flags, number) = if is_paged(file) {
            (FLAGS, -1)
        } else {
            (libc::MAP_SHARED, file.number())
        };
        // SAFETY: the lengths add up to the reservation's, so this replaces a part of it
        // that no file has yet.
        let mapped = unsafe {
            libc::mmap(
                base.byte_add(offset),
                length,
                libc::PROT_READ,
                flags | libc::MAP_FIXED,
                number,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(Error::Map {
                index,
                source: io::Error::last_os_error(),
            });
        }
        offset = offset.saturating_add(length);
    }
    // SAFETY: `base` and `size` are those of the mappings above. They stay as long as the process,
    // because they are never unmapped.
    Ok(unsafe { MmapRegion::build_raw(base.cast(), size, libc::PROT_READ, libc::MAP_SHARED)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileRef;
    use std::io::Write;
    use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

    #[test]
    fn files_of_a_region_follow_each_other() {
        let files: Vec<MachineFile> = [1_u8, 2, 3]
            .iter()
            .map(|fill| {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(&[*fill; 8192]).unwrap();
                MachineFile::new(file, "layer").unwrap()
            })
            .collect();
        let region =
            GuestRegionMmap::new(map(&files, |_| false).unwrap(), GuestAddress(0)).unwrap();
        let memory = GuestMemoryMmap::from_regions(vec![region]).unwrap();
        let mut bytes = [0; 4];
        memory.read_slice(&mut bytes, GuestAddress(8190)).unwrap();
        assert_eq!(bytes, [1, 1, 2, 2]);
        memory.read_slice(&mut bytes, GuestAddress(24572)).unwrap();
        assert_eq!(bytes, [3; 4]);
    }

    #[test]
    fn files_that_cannot_be_mapped_are_named() {
        let claimed = |file, length| {
            let description = FileRef {
                number: 0,
                length,
                name: "layer".into(),
                part: None,
            };
            MachineFile::received(file, description)
        };
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        let pipe = claimed(pipe.into(), 4096);
        assert!(matches!(
            map(&[pipe], |_| false),
            Err(Error::Map { index: 0, .. })
        ));
        let huge = claimed(tempfile::tempfile().unwrap(), u64::MAX);
        assert!(matches!(
            map(&[huge], |_| false),
            Err(Error::Reserve { .. })
        ));
    }
}
