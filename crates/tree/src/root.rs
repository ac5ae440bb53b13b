//! Resolves paths below a directory.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::io::Errno;

use crate::again;

/// A directory that paths are resolved in.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    resolve: ResolveFlags,
}

impl Root {
    /// Makes `directory` a root in which links are followed as by a process with this root. The
    /// kernel's own links in `/proc` are not followed.
    pub fn new(directory: OwnedFd) -> Self {
        Self {
            directory,
            resolve: ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        }
    }

    /// Makes `directory` a root in which no link is followed, and no path begins with a slash.
    pub fn without_links(directory: OwnedFd) -> Self {
        Self {
            directory,
            resolve: ResolveFlags::BENEATH
                | ResolveFlags::NO_SYMLINKS
                | ResolveFlags::NO_MAGICLINKS,
        }
    }

    /// Makes `directory` the start of any path, as the current directory is.
    pub fn unbound(directory: OwnedFd) -> Self {
        Self {
            directory,
            resolve: ResolveFlags::empty(),
        }
    }

    /// Returns whether links are not followed.
    pub fn is_without_links(&self) -> bool {
        self.resolve.contains(ResolveFlags::NO_SYMLINKS)
    }

    /// Opens a path; an empty one is the root itself.
    ///
    /// # Errors
    /// The system's; `XDEV` and `LOOP` for paths that lead out.
    pub fn open(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = flags | OFlags::CLOEXEC;
        // The kernel gives up when something is renamed while it goes through `..`.
        again(
            |errno| errno == Errno::AGAIN,
            || openat2(&self.directory, path, flags, mode, self.resolve),
        )
    }

    /// Opens a directory, only to find names in it.
    ///
    /// # Errors
    /// The system's.
    pub fn directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
    }

    /// Opens the directory that a path's last name is in. Returns that name too: of `.`, `..` and the
    /// root there is none, and the error is `BUSY`.
    ///
    /// # Errors
    /// The system's.
    pub fn parent<'a>(&self, path: &'a [u8]) -> Result<(OwnedFd, &'a [u8]), Errno> {
        let (parent, name) = split(path).ok_or(Errno::BUSY)?;
        Ok((self.directory(parent)?, name))
    }

    /// As [`Root::parent`]; missing directories are made.
    ///
    /// # Errors
    /// The system's.
    pub fn made_parent<'a>(&self, path: &'a [u8]) -> Result<(OwnedFd, &'a [u8]), Errno> {
        let (parent, name) = split(path).ok_or(Errno::BUSY)?;
        Ok((self.made_directory(parent)?, name))
    }

    /// Opens a directory. If it is missing, makes it with mode 0755, and so its parents.
    ///
    /// # Errors
    /// The system's.
    pub fn made_directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        match self.directory(path) {
            Err(Errno::NOENT) => {}
            result => return result,
        }
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let ends = ends.map(|(at, _)| at).chain([path.len()]);
        for end in ends {
            let path = path.get(..end).unwrap_or_default();
            let Some((parent, name)) = split(path) else {
                continue;
            };
            match self.directory(path) {
                Err(Errno::NOENT) => {}
                result => {
                    result?;
                    continue;
                }
            }
            match mkdirat(self.directory(parent)?, name, Mode::from_raw_mode(0o755)) {
                Err(Errno::EXIST) => {}
                result => result?,
            }
        }
        self.directory(path)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Splits a path into its last name and what is in front of it, slashes at the end aside. None if the
/// last name is `.` or `..`, or if there is none.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let path = path.get(..end)?;
    let start = path.iter().rposition(|byte| *byte == b'/');
    let (parent, name) = path.split_at(start.map_or(0, |slash| slash + 1));
    (name != b"." && name != b"..").then_some((parent, name))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_is_split_before_its_last_name() {
        for (path, parts) in [
            ("/a/b", Some(("/a/", "b"))),
            ("/a/b//", Some(("/a/", "b"))),
            ("a", Some(("", "a"))),
            ("/a", Some(("/", "a"))),
            ("/", None),
            ("", None),
            ("/a/.", None),
            ("/a/../", None),
        ] {
            let parts =
                parts.map(|(parent, name): (&str, &str)| (parent.as_bytes(), name.as_bytes()));
            assert_eq!(split(path.as_bytes()), parts, "{path}");
        }
    }

    #[test]
    fn no_path_leads_out_of_a_root() {
        let place = tempfile::tempdir().unwrap();
        let inside = place.path().join("inside");
        fs::create_dir_all(inside.join("d")).unwrap();
        fs::write(place.path().join("secret"), "").unwrap();
        fs::write(inside.join("file"), "").unwrap();
        symlink("../../../../../..", inside.join("up")).unwrap();
        symlink(place.path(), inside.join("out")).unwrap();
        symlink("/file", inside.join("d/absolute")).unwrap();
        symlink("/proc/self/root", inside.join("magic")).unwrap();
        let open = || fs::File::open(&inside).unwrap().into();
        let root = Root::new(open());
        let reads = |root: &Root, path: &str| {
            root.open(path.as_bytes(), OFlags::RDONLY, Mode::empty())
                .is_ok()
        };
        for (path, found) in [
            ("/file", true),
            ("../../file", true),
            ("up/file", true),
            ("/d/absolute", true),
            ("/../secret", false),
            ("up/secret", false),
            ("out/secret", false),
            ("magic/etc", false),
        ] {
            assert_eq!(reads(&root, path), found, "{path}");
        }
        let strict = Root::without_links(open());
        for path in ["/file", "../secret", "d/../../secret", "up", "d/absolute"] {
            assert!(!reads(&strict, path), "{path}");
        }
        assert!(reads(&strict, "d/../file"));
        // Links on the way are followed, and the missing rest is made below the root.
        root.made_directory(b"/up/new/er").unwrap();
        assert!(inside.join("new/er").is_dir());
        assert_eq!(root.made_directory(b"/file/x").unwrap_err(), Errno::NOTDIR);
        assert_eq!(root.parent(b"/").unwrap_err(), Errno::BUSY);
    }
}
