//! Files that appear under their names only when complete.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use micabox_ground::publish::directory;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

/// A file without a name, where the filesystem supports it: however this process ends, nothing is
/// left behind. All that mica writes for a user is one: what is in it may be secret, so that it is the user's alone.
#[derive(Debug)]
pub struct WholeFile {
    kind: Kind,
    path: PathBuf,
}

#[derive(Debug)]
enum Kind {
    /// A device or a pipe (`/dev/null`, `/dev/stdout`), which is written to as it is.
    Special(File),
    Unnamed(File),
    Temporary(tempfile::NamedTempFile),
}

impl WholeFile {
    /// Creates a file that will be published as `path`, or as what that links to. It keeps owner and permissions of a
    /// regular file that is there; anything else that is there is opened instead.
    ///
    /// # Errors
    /// Errors of the directory, and that `path` is one.
    pub fn create(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path).ok();
        if found.as_ref().is_some_and(|found| !found.is_file()) {
            let kind = Kind::Special(File::options().write(true).open(path)?);
            let path = path.to_owned();
            return Ok(Self { kind, path });
        }
        let path = match &found {
            Some(_) => fs::canonicalize(path)?,
            None => path.to_owned(),
        };
        let directory = directory(&path);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let kind = match rustix::fs::open(directory, flags, mode) {
            Ok(file) => Kind::Unnamed(file.into()),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                Kind::Temporary(tempfile::NamedTempFile::new_in(directory)?)
            }
            Err(error) => return Err(error.into()),
        };
        let whole = Self { kind, path };
        if let Some(found) = found {
            // Only root may give a file away.
            let _ = fchown(whole.file(), Some(found.uid()), Some(found.gid()));
            whole.file().set_permissions(found.permissions())?;
        }
        Ok(whole)
    }

    /// Returns whether it is a new regular file, and no device or pipe that was there.
    pub fn is_regular(&self) -> bool {
        !matches!(self.kind, Kind::Special(_))
    }

    /// Returns its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file to write to.
    pub fn file(&self) -> &File {
        match &self.kind {
            Kind::Special(file) | Kind::Unnamed(file) => file,
            Kind::Temporary(file) => file.as_file(),
        }
    }

    /// Writes the file to disk, gives it its name, and replaces the file that has it.
    ///
    /// # Errors
    /// Errors of the disk and of the directory.
    pub fn publish(self) -> io::Result<()> {
        let path = &self.path;
        let file = match self.kind {
            Kind::Special(_) => return Ok(()),
            Kind::Unnamed(file) => file,
            Kind::Temporary(file) => {
                file.as_file().sync_all()?;
                file.persist(path)?;
                return Ok(());
            }
        };
        file.sync_all()?;
        let link = |name: &Path| {
            let from = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(CWD, from, CWD, name, AtFlags::SYMLINK_FOLLOW)
        };
        match link(path) {
            // A link can't replace a file, but a rename can.
            Err(Errno::EXIST) => {
                let name = format!(".mica-{}.part", std::process::id());
                let beside = directory(path).join(name);
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
    use std::fs::Permissions;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn an_unfinished_file_is_removed() {
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
            write(text).publish().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(), 1);
        }
        WholeFile::create(Path::new("/proc/none/file"))
            .err()
            .unwrap();
    }

    #[test]
    fn a_file_is_its_users_alone_unless_one_was_there_for_others() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        WholeFile::create(&path).unwrap().publish().unwrap();
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        let whole = WholeFile::create(&link).unwrap();
        whole.file().write_all(b"text").unwrap();
        whole.publish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(mode(), 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn what_is_no_regular_file_is_written_to_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let reader = {
            let path = path.clone();
            std::thread::spawn(move || fs::read_to_string(path).unwrap())
        };
        let whole = WholeFile::create(&path).unwrap();
        whole.file().write_all(b"text").unwrap();
        whole.publish().unwrap();
        assert_eq!(reader.join().unwrap(), "text");
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind));
        let error = WholeFile::create(directory.path()).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }
}
