//! fs-verity: files that never change again, which the kernel checks when it reads them from the disk. It is here since
//! it takes ioctls, and `unsafe` is only in this crate.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

/// `FS_IOC_ENABLE_VERITY` and `FS_IOC_MEASURE_VERITY` (`linux/fsverity.h`): `_IOW('f', 133, struct fsverity_enable_arg)`
/// and `_IOWR('f', 134, struct fsverity_digest)`.
const ENABLE: libc::Ioctl = 0x4080_6685_u32 as libc::Ioctl;
const MEASURE: libc::Ioctl = 0xc004_6686_u32 as libc::Ioctl;

/// `FS_VERITY_HASH_ALG_SHA256`, and the size of its blocks that every filesystem has.
const SHA256: u16 = 1;
const BLOCK: u32 = 4096;
const DIGEST: usize = 32;

/// How long a file may be open for writing still: a process that is being started has all files open until it executes
/// its program.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// `struct fsverity_enable_arg`.
#[repr(C)]
struct Options {
    version: u32,
    hash_algorithm: u32,
    block_size: u32,
    salt_size: u32,
    salt: u64,
    signature_size: u32,
    reserved: u32,
    signature: u64,
    more_reserved: [u64; 11],
}

/// `struct fsverity_digest`, with its digest.
#[repr(C)]
struct Measured {
    algorithm: u16,
    size: u16,
    digest: [u8; DIGEST],
}

/// Switches fs-verity on for a file, with SHA-256. It has to be open for reading alone, everywhere. From then on nothing
/// writes to it, and the kernel compares what it reads of it with a tree of digests.
///
/// # Errors
/// The system's; of a filesystem without it `Unsupported`, or another error that it has chosen.
pub fn enable_verity(file: &File) -> io::Result<()> {
    let options = Options {
        version: 1,
        hash_algorithm: SHA256.into(),
        block_size: BLOCK,
        salt_size: 0,
        salt: 0,
        signature_size: 0,
        reserved: 0,
        signature: 0,
        more_reserved: [0; 11],
    };
    let begun = Instant::now();
    loop {
        // SAFETY: the kernel reads a structure of this layout, which lives until the call returns and points nowhere.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), ENABLE, &raw const options) };
        if done != -1 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ETXTBSY) || begun.elapsed() > PATIENCE {
            return Err(error);
        }
        thread::sleep(PAUSE);
    }
}

/// Returns the digest by which the kernel knows a file with fs-verity; none of one without it, or with another digest
/// than SHA-256. It is that of a descriptor with the root of the tree, and not the contents' own.
pub fn verity_digest(file: &File) -> Option<[u8; DIGEST]> {
    let mut measured = Measured {
        algorithm: 0,
        size: DIGEST as u16,
        digest: [0; DIGEST],
    };
    // SAFETY: the kernel writes a header and at most `size` bytes behind it, all of which is in the structure.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), MEASURE, &raw mut measured) };
    let is_ours = measured.algorithm == SHA256 && usize::from(measured.size) == DIGEST;
    (done != -1 && is_ours).then_some(measured.digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_sizes() {
        // As the numbers of the calls have them.
        assert_eq!(size_of::<Options>(), 0x80);
        assert_eq!(size_of::<Measured>(), 4 + DIGEST);
    }

    #[test]
    fn a_filesystem_without_it_has_files_without_it() {
        // procfs has none on any machine.
        let file = File::open("/proc/self/status").unwrap();
        enable_verity(&file).unwrap_err();
        assert_eq!(verity_digest(&file), None);
    }
}
