//! The directory that a filesystem is mounted on: found once, and held from then on.
//!
//! Where another user can write on the way to it, a name may mean something else in the next moment. So a link is
//! followed only if it is root's or the caller's, and a filesystem is mounted on what was found and not on its name.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlink, readlinkat};
use rustix::process::geteuid;

/// Most links on the way, as in the kernel.
const LINKS: usize = 40;

/// A directory to mount on.
#[derive(Debug)]
pub struct Target {
    directory: OwnedFd,
    path: PathBuf,
}

impl Target {
    /// Finds a directory.
    ///
    /// # Errors
    /// The system's; that it is none; that another user's link leads to it.
    pub fn find(path: &Path) -> io::Result<Self> {
        let mut left: VecDeque<OsString> = components(path).collect();
        let mut links = 0;
        let start = if path.is_absolute() { "/" } else { "." };
        let mut at = open(CWD, start)?;
        while let Some(name) = left.pop_front() {
            let next = open(&at, &*name)?;
            let stat = fstat(&next)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                at = next;
                continue;
            }
            check(&stat, &name)?;
            links += 1;
            if links > LINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            let to = readlinkat(&next, "", Vec::new())?.into_bytes();
            let to = PathBuf::from(OsString::from_vec(to));
            if to.is_absolute() {
                at = open(CWD, "/")?;
            }
            for component in components(&to).rev() {
                left.push_front(component);
            }
        }
        if FileType::from_raw_mode(fstat(&at)?.st_mode) != FileType::Directory {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let name = readlink(format!("/proc/self/fd/{}", at.as_raw_fd()), Vec::new())?;
        Ok(Self {
            directory: at,
            path: PathBuf::from(OsString::from_vec(name.into_bytes())),
        })
    }

    /// Returns its path, without links, as of when it was found.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path that leads this process there, whatever its own path leads to by now.
    #[must_use]
    pub fn held_path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.directory.as_raw_fd()).into()
    }
}

impl AsFd for Target {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Returns the names in a path, `..` among them.
fn components(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + use<'_> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn open(directory: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::empty())?)
}

/// Refuses a link that is neither root's nor this process's user's.
fn check(link: &Stat, name: &OsStr) -> io::Result<()> {
    if [0, geteuid().as_raw()].contains(&link.st_uid) {
        return Ok(());
    }
    let name = name.display();
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("`{name}` on the way is a link of another user (name the directory itself)"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn a_directory_is_found_behind_links_and_held_when_its_name_means_another() {
        let all = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(all.path()).unwrap();
        let at = |name: &str| root.join(name);
        fs::create_dir_all(at("a/b/c")).unwrap();
        symlink("a/./b/../b", at("link")).unwrap();
        symlink(at("link"), at("a/absolute")).unwrap();
        for path in ["a/b/c", "link/c", "a/absolute/c", "a/b/../../link/c"] {
            assert_eq!(
                Target::find(&at(path)).unwrap().path(),
                at("a/b/c"),
                "{path}"
            );
        }
        let target = Target::find(&at("link/c")).unwrap();
        fs::rename(at("a"), at("gone")).unwrap();
        fs::create_dir_all(at("a/b/c")).unwrap();
        fs::write(at("gone/b/c/file"), "").unwrap();
        assert!(target.held_path().join("file").exists());
        fs::write(at("file"), "").unwrap();
        symlink("loop", at("loop")).unwrap();
        for path in ["file", "missing", "loop", "file/below"] {
            Target::find(&at(path)).unwrap_err();
        }
    }

    #[test]
    #[ignore = "needs root"]
    fn another_users_link_is_not_followed() {
        let all = tempfile::tempdir().unwrap();
        fs::create_dir_all(all.path().join("target/m")).unwrap();
        let link = all.path().join("link");
        symlink("target", &link).unwrap();
        Target::find(&link.join("m")).unwrap();
        lchown(&link, Some(65534), Some(65534)).unwrap();
        for path in [link.clone(), link.join("m")] {
            let refused = Target::find(&path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        }
    }
}
