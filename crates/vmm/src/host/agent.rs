//! Takes the agent out of the initrd that a machine would boot.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, memfd_create, open, sendfile,
};

/// The agent's name in the archive.
const NAME: &[u8] = b"init";

/// Bytes of a header of an archive in the format "newc": a magic number of six characters, and 13 numbers
/// of eight hexadecimal digits (kernel, Documentation/driver-api/early-userspace/buffer-format.rst).
const HEADER: usize = 110;
const MAGIC: &[u8] = b"070701";

/// The places of the numbers of a file's size and of its name's.
const FILE_SIZE: usize = 6;
const NAME_SIZE: usize = 11;

/// Most bytes of a name, and most files before the agent.
const LONGEST_NAME: u64 = 4096;
const MOST_FILES: usize = 1000;

/// Returns a copy of the agent in memory that nothing can change, not even the agent itself. It can be executed and
/// not read, and its owner is no user of the container, unless that has one user only: so the capability to trace
/// processes of the container does not reach the agent (`would_dump` of the kernel's fs/exec.c).
pub(super) fn copy_out(initrd: &File) -> io::Result<OwnedFd> {
    let (offset, length) = find(initrd)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut copy = File::from(memfd_create("mica-guest", flags)?);
    let mut from = offset;
    let end = offset.saturating_add(length);
    while from < end {
        let most = usize::try_from(end - from).unwrap_or(usize::MAX);
        // Copied once, and not through this process's memory.
        if sendfile(&copy, initrd, Some(&mut from), most)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    copy.seek(SeekFrom::Start(0))?;
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&copy, all)?;
    fchmod(&copy, Mode::XUSR | Mode::XGRP | Mode::XOTH)?;
    // A file that is open for writing can't be executed.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&copy));
    Ok(open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns the offset and length of the agent in the archive.
fn find(initrd: &File) -> io::Result<(u64, u64)> {
    let mut at = 0_u64;
    for _ in 0..MOST_FILES {
        let mut header = [0; HEADER];
        initrd.read_exact_at(&mut header, at)?;
        if !header.starts_with(MAGIC) {
            break;
        }
        let number = |index: usize| {
            let start = MAGIC.len() + 8 * index;
            let digits = header
                .get(start..start + 8)
                .and_then(|digits| std::str::from_utf8(digits).ok());
            let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
            number.map(u64::from).ok_or(io::ErrorKind::InvalidData)
        };
        let (file_size, name_size) = (number(FILE_SIZE)?, number(NAME_SIZE)?);
        if name_size > LONGEST_NAME {
            break;
        }
        let mut name = vec![0; usize::try_from(name_size).unwrap_or_default()];
        let after_header = at + HEADER as u64;
        initrd.read_exact_at(&mut name, after_header)?;
        // Name and contents end at a multiple of four bytes each.
        let contents = (after_header + name_size).next_multiple_of(4);
        if name.strip_suffix(b"\0") == Some(NAME) {
            return Ok((contents, file_size));
        }
        at = (contents + file_size).next_multiple_of(4);
    }
    Err(io::Error::other("the initrd has no agent (`init`)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn entry(name: &str, data: &[u8]) -> Vec<u8> {
        let numbers = (0..13).map(|index| match index {
            FILE_SIZE => format!("{:08X}", data.len()),
            NAME_SIZE => format!("{:08X}", name.len() + 1),
            _ => "00000000".to_owned(),
        });
        let mut bytes = format!("070701{}{name}\0", numbers.collect::<String>()).into_bytes();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn the_agent_is_found_behind_other_files_and_its_copy_is_sealed() {
        let archive = [
            entry("dev", b""),
            entry("x/init", b"other"),
            entry("init", b"agent!"),
        ];
        let copy = copy_out(&file(&archive.concat())).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&copy));
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o111);
        // Its owner may change that.
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"agent!");
        let writable = File::options().write(true).open(path).unwrap();
        (&writable).write_all(b"x").unwrap_err();
    }

    #[test]
    fn an_archive_without_an_agent_is_refused() {
        let whole = entry("init", b"agent");
        for bytes in [
            &b""[..],
            &entry("TRAILER!!!", b""),
            &whole[..100],
            &whole[..whole.len() - 4],
            &[b'x'; 500],
        ] {
            copy_out(&file(bytes)).unwrap_err();
        }
    }
}
