//! Resolves paths below a directory.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2, readlinkat};
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

    /// Opens a directory. If it is missing, makes it with mode 0755, and so its parents; also where links lead
    /// that dangle, as Docker does.
    ///
    /// # Errors
    /// The system's.
    pub fn made_directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        match self.directory(path) {
            Err(Errno::NOENT) => {}
            result => return result,
        }
        let path = self.way(path)?;
        self.make(&path)?;
        self.directory(&path)
    }

    /// Opens the file at a path as a place, to mount on it. If it is missing, makes an empty one with mode 0644,
    /// and directories as [`Root::made_directory`].
    ///
    /// # Errors
    /// The system's.
    pub fn made_file(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        match self.open(path, OFlags::PATH, Mode::empty()) {
            Err(Errno::NOENT) => {}
            result => return result,
        }
        let path = self.way(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        self.open(&path, flags, Mode::from_raw_mode(0o644))?;
        self.open(&path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())
    }

    /// Returns where a path leads, without links. There may be nothing at its end; directories that are missing
    /// on the way are made.
    ///
    /// # Errors
    /// The system's; `LOOP` for more links than Linux follows.
    pub fn way(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        /// Most links that are followed, as in the kernel.
        const LINKS: usize = 40;
        let mut links = 0;
        let mut names: Vec<Vec<u8>> = names(path);
        // Has no links, so that `..` is what is in front of it.
        let mut way: Vec<u8> = Vec::new();
        while let Some(name) = names.pop() {
            if name == b".." {
                way.truncate(split(&way).map_or(0, |(parent, _)| parent.len().saturating_sub(1)));
                continue;
            }
            let above = self.directory(&way)?;
            match readlinkat(&above, &*name, Vec::new()) {
                Ok(_) if self.is_without_links() => return Err(Errno::LOOP),
                Ok(_) if links == LINKS => return Err(Errno::LOOP),
                Ok(target) => {
                    links += 1;
                    let target = target.as_bytes();
                    if target.starts_with(b"/") {
                        way.clear();
                    }
                    names.extend(self::names(target));
                    continue;
                }
                Err(Errno::NOENT) if names.is_empty() => {}
                Err(Errno::NOENT) => self.make(&[&way[..], b"/", &name].concat())?,
                // No link.
                Err(Errno::INVAL) => {}
                Err(error) => return Err(error),
            }
            if !way.is_empty() {
                way.push(b'/');
            }
            way.extend(name);
        }
        Ok(way)
    }

    /// Makes a directory, unless it is there.
    fn make(&self, path: &[u8]) -> Result<(), Errno> {
        let Some((parent, name)) = split(path) else {
            return Ok(());
        };
        let parent = parent.strip_prefix(b"/").unwrap_or(parent);
        match mkdirat(self.directory(parent)?, name, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => Ok(()),
            result => result,
        }
    }
}

/// Returns the names in a path, the last one first.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.rsplit(|byte| *byte == b'/');
    let names = names.filter(|name| !matches!(*name, b"" | b"."));
    names.map(<[u8]>::to_vec).collect()
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
        assert_eq!(root.made_directory(b"/file").unwrap_err(), Errno::NOTDIR);
        assert_eq!(root.parent(b"/").unwrap_err(), Errno::BUSY);
    }

    #[test]
    fn links_that_lead_nowhere_yet_are_made_through() {
        let place = tempfile::tempdir().unwrap();
        let inside = place.path().join("inside");
        fs::create_dir_all(inside.join("a/b")).unwrap();
        for (target, link) in [
            ("usr/etc", "etc"),
            ("/run/../var/run/service", "a/absolute"),
            ("../../../..//out", "a/b/up"),
            ("absolute/conf", "a/chain"),
            ("loop", "loop"),
            ("b", "a/there"),
        ] {
            symlink(target, inside.join(link)).unwrap();
        }
        let root = Root::new(fs::File::open(&inside).unwrap().into());
        root.made_file(b"/etc/hostname").unwrap();
        assert!(inside.join("usr/etc/hostname").is_file());
        root.made_file(b"a/chain").unwrap();
        assert!(inside.join("var/run/service/conf").is_file());
        root.made_directory(b"/a/b/up/deep").unwrap();
        assert!(inside.join("out/deep").is_dir());
        assert!(!place.path().join("out").exists());
        root.made_directory(b"/a/there/../c/./d/").unwrap();
        assert!(inside.join("a/c/d").is_dir());
        assert_eq!(root.way(b"/a/there/new").unwrap(), b"a/b/new");
        assert_eq!(root.way(b"/").unwrap(), b"");
        // What is there stays as it is.
        fs::write(inside.join("usr/etc/hostname"), "kept").unwrap();
        root.made_file(b"etc/hostname").unwrap();
        assert_eq!(fs::read(inside.join("usr/etc/hostname")).unwrap(), b"kept");
        assert_eq!(root.made_file(b"/loop").unwrap_err(), Errno::LOOP);
        assert_eq!(root.way(b"/loop/x").unwrap_err(), Errno::LOOP);
        let strict = Root::without_links(fs::File::open(&inside).unwrap().into());
        symlink("nowhere", inside.join("dangling")).unwrap();
        strict.made_directory(b"dangling/x").unwrap_err();
        assert!(!inside.join("nowhere").exists());
    }
}
