//! Numbers that one process of this machine has at a time.
//!
//! Each is a byte of a file in a directory of root's, locked for as long as its owner lives. No other user can take
//! one first, and the kernel frees it however the owner ends. A name that belongs to the first who asks for it, as an
//! abstract socket's does, would let any user take all of them.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Directories of root's on every system, in one of which the files are. The last can be written to even where all
/// others are read-only.
const PARENTS: [&str; 3] = ["/run", "/var/lib", "/dev"];

/// The name of the directory there.
const NAME: &str = "micabox";

/// Permissions of others and of the group.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

/// A number that no other process has while this lives.
#[derive(Debug)]
pub(crate) struct Taken {
    number: u32,
    _lock: File,
}

impl Taken {
    /// Takes one of the numbers of a kind, which are below `count`, beginning at `begin`. None if all are taken.
    pub(crate) fn one_of(kind: &str, count: u32, begin: u32) -> io::Result<Option<Self>> {
        Self::of(&directory(&PARENTS)?, kind, count, begin)
    }

    fn of(directory: &OwnedFd, kind: &str, count: u32, begin: u32) -> io::Result<Option<Self>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, kind, flags, Mode::RUSR | Mode::WUSR)?;
        let stat = fstat(&file)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || !is_ours_alone(&stat) {
            return Err(io::Error::other(format!(
                "{NAME}/{kind} belongs to others (remove it)"
            )));
        }
        let file = File::from(file);
        for number in 0..count {
            let number = begin.wrapping_add(number) % count;
            if lock(&file, number)? {
                let taken = Self {
                    number,
                    _lock: file,
                };
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

/// Opens the directory in the first of these that is this process's user's and can be written to.
fn directory(parents: &[&str]) -> io::Result<OwnedFd> {
    let mut why = Vec::new();
    for parent in parents {
        match directory_in(parent) {
            Ok(directory) => return Ok(directory),
            // Two processes with different directories could have the same number, so nothing that passes leads to
            // the next.
            Err(error @ (Errno::ROFS | Errno::NOENT | Errno::ACCESS | Errno::PERM)) => {
                why.push(format!("{parent}/{NAME}: {}", io::Error::from(error)));
            }
            Err(error) => {
                let error = io::Error::from(error);
                let what = format!("{parent}/{NAME}: {error}");
                return Err(io::Error::new(error.kind(), what));
            }
        }
    }
    Err(io::Error::other(format!(
        "there is no directory for locks that other users can't take: {}",
        why.join("; ")
    )))
}

fn directory_in(parent: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = openat(CWD, parent, flags, Mode::empty())?;
    let stat = fstat(&parent)?;
    if stat.st_uid != geteuid().as_raw() || stat.st_mode & OTHERS_WRITE != 0 {
        return Err(Errno::PERM);
    }
    match mkdirat(&parent, NAME, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let directory = openat(&parent, NAME, flags | OFlags::NOFOLLOW, Mode::empty())?;
    if is_ours_alone(&fstat(&directory)?) {
        Ok(directory)
    } else {
        Err(Errno::PERM)
    }
}

fn is_ours_alone(stat: &Stat) -> bool {
    stat.st_uid == geteuid().as_raw() && stat.st_mode & OTHERS == 0
}

/// Locks one byte of a file; returns false if it is locked already. The lock is the open file's.
fn lock(file: &File, at: u32) -> io::Result<bool> {
    // SAFETY: `flock` is plain data, valid when zero.
    let mut lock: libc::flock = unsafe { zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at.into();
    lock.l_len = 1;
    // SAFETY: an open descriptor, and a structure that lives.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            error if error.raw_os_error() == Some(libc::EACCES) => Ok(false),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn make(parent: &Path) -> io::Result<OwnedFd> {
        directory(&[parent.to_str().unwrap()])
    }

    #[test]
    fn a_number_has_one_owner_until_its_end() {
        let parent = tempfile::tempdir().unwrap();
        let take = |begin| Taken::of(&make(parent.path()).unwrap(), "users", 3, begin).unwrap();
        let all: Vec<_> = (0..3).map(|_| take(1).unwrap()).collect();
        let numbers: Vec<u32> = all.iter().map(Taken::number).collect();
        assert_eq!(numbers, [1, 2, 0]);
        assert!(take(1).is_none());
        let other = Taken::of(&make(parent.path()).unwrap(), "others", 3, 1).unwrap();
        assert_eq!(other.unwrap().number(), 1);
        drop(all.into_iter().nth(2));
        assert_eq!(take(1).unwrap().number(), 1);
    }

    #[test]
    fn what_another_user_may_have_made_is_not_locked() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join(NAME);
        // A parent that others can write to.
        fs::set_permissions(parent.path(), Permissions::from_mode(0o1777)).unwrap();
        make(parent.path()).unwrap_err();
        assert!(!path.exists());
        fs::set_permissions(parent.path(), Permissions::from_mode(0o755)).unwrap();
        // A link, and a directory that others can use.
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), &path).unwrap();
        make(parent.path()).unwrap_err();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        make(parent.path()).unwrap_err();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        let directory = make(parent.path()).unwrap();
        // A file that others can open and lock.
        fs::write(path.join("users"), "").unwrap();
        fs::set_permissions(path.join("users"), Permissions::from_mode(0o644)).unwrap();
        Taken::of(&directory, "users", 3, 0).unwrap_err();
        symlink("users", path.join("link")).unwrap();
        Taken::of(&directory, "link", 3, 0).unwrap_err();
        // Where the first place is read-only or another's, the next one is taken.
        let places = ["/proc", parent.path().to_str().unwrap()];
        super::directory(&places).unwrap();
    }
}
