//! Files that have their names only when they are whole.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

/// A file without a name, where the filesystem has such: whatever ends this process leaves
/// nothing behind.
pub struct WholeFile {
    kind: Kind,
    directory: PathBuf,
}

enum Kind {
    Unnamed(File),
    Temporary(tempfile::NamedTempFile),
}

impl WholeFile {
    /// A file that is to be `path`.
    ///
    /// # Errors
    /// Those of its directory.
    pub fn create(path: &Path) -> io::Result<Self> {
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        // As `docker save` has it: what is in an image or a snapshot may be secret.
        let mode = Mode::RUSR | Mode::WUSR;
        let kind = match rustix::fs::open(&directory, flags, mode) {
            Ok(file) => Kind::Unnamed(file.into()),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                Kind::Temporary(tempfile::NamedTempFile::new_in(&directory)?)
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { kind, directory })
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        match &self.kind {
            Kind::Unnamed(file) => file,
            Kind::Temporary(file) => file.as_file(),
        }
    }

    /// Gives it its name, in place of what has it.
    ///
    /// # Errors
    /// Those of its directory.
    pub fn publish(self, path: &Path) -> io::Result<()> {
        let file = match self.kind {
            Kind::Unnamed(file) => file,
            Kind::Temporary(file) => {
                file.persist(path)?;
                return Ok(());
            }
        };
        let link = |name: &Path| {
            let from = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(CWD, from, CWD, name, AtFlags::SYMLINK_FOLLOW)
        };
        match link(path) {
            // A link replaces nothing, but a renaming does.
            Err(Errno::EXIST) => {
                let name = format!(".mica-{}.part", std::process::id());
                let beside = self.directory.join(name);
                link(&beside)?;
                fs::rename(&beside, path).inspect_err(|_| {
                    let _ = fs::remove_file(&beside);
                })
            }
            result => Ok(result?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_is_given_up_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let names = || fs::read_dir(directory.path()).unwrap().count();
        let write = |text: &str| {
            let file = WholeFile::create(&path).unwrap();
            file.file().write_all(text.as_bytes()).unwrap();
            file
        };
        drop(write("given up"));
        assert_eq!(names(), 0);
        for text in ["first", "second"] {
            write(text).publish(&path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(), 1);
        }
        WholeFile::create(Path::new("/nonexistent/file"))
            .err()
            .unwrap();
    }
}
