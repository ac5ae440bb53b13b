//! A folder of the host with a sandbox's changes: overlayfs's directories `upper` and `work`.

use std::ffi::CStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use micabox_error::Error;
use micabox_image::Digest;
use micabox_state::BaseName;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, XattrFlags, fgetxattr, fremovexattr,
    fsetxattr, fstatvfs, openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

/// The name of the virtio-fs device.
pub const TAG: &str = "upper";

/// overlayfs's directories in such a folder; the first of them also before it is complete.
const DIRECTORIES: [&CStr; 3] = [c"upper", c"upper.new", c"work"];

/// The files with which [`check_filesystem`] tries the filesystem.
const FILE: &CStr = c".check";
const RENAMED: &CStr = c".check.new";

/// How long the server of a sandbox whose owner was killed may take to end.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The attribute of a folder with a mounted tree's changes: the image that they are over. Only root sees it.
const TREES_IMAGE: &CStr = c"trusted.micabox.image";

/// The same of a sandbox's changes: its base. No attribute that a guest sets gets this name outside.
const BASE: &CStr = c"user.micabox.user.base";

/// Interval between attempts to lock.
const POLL: Duration = Duration::from_millis(20);

/// Opens the folder at `path` for a sandbox of this base, which alone may use it while the file or a copy
/// of it is open. A missing one is made if `make` and its parent exists. Waits for `patience` if another
/// sandbox uses it. Changes of another base are refused; of what an older version has made, none is known.
///
/// # Errors
/// [`Error::UpperFolder`], [`Error::UpperInUse`].
pub fn open(path: &Path, base: &BaseName, make: bool, patience: Duration) -> Result<File, Error> {
    let folder = open_any(path, make, patience)?;
    let checked = || -> io::Result<()> {
        if attribute(&folder, TREES_IMAGE)?.is_some() {
            let why = "it has the changes of a mounted tree, with other owners";
            return Err(invalid(why));
        }
        let base = base.identity();
        match attribute(&folder, BASE)? {
            Some(known) if known == base.as_bytes() => Ok(()),
            Some(known) if has_changes(&folder)? => Err(of_another(&known)),
            _ => Ok(fsetxattr(
                &folder,
                BASE,
                base.as_bytes(),
                XattrFlags::empty(),
            )?),
        }
    };
    checked().map_err(failed(path))?;
    Ok(folder)
}

/// Opens the folder at `path` for the kernel's overlay over an image, as [`open`] does for a sandbox. What
/// a sandbox has changed, or changes of another image, can't be used.
///
/// # Errors
/// As [`open`].
pub fn open_for_tree(path: &Path, image: &Digest) -> Result<File, Error> {
    let folder = open_any(path, true, PATIENCE)?;
    let checked = || -> io::Result<()> {
        let image = image.to_string();
        match attribute(&folder, TREES_IMAGE)? {
            Some(known) if known == image.as_bytes() => Ok(()),
            _ if !has_changes(&folder)? => {
                let image = image.as_bytes();
                fsetxattr(&folder, TREES_IMAGE, image, XattrFlags::empty())?;
                Ok(())
            }
            Some(known) => Err(of_another(&known)),
            None => Err(invalid("it has the changes of a sandbox")),
        }
    };
    checked().map_err(failed(path))?;
    Ok(folder)
}

fn has_changes(folder: &File) -> io::Result<bool> {
    match statat(folder, DIRECTORIES[0], AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(false),
        found => Ok(found.map(|_| true)?),
    }
}

fn of_another(known: &[u8]) -> io::Error {
    let why = format!("it has changes of another image, {}", known.escape_ascii());
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn attribute(folder: &File, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; 256];
    match fgetxattr(folder, name, value.as_mut_slice()) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        // Or this user sees none.
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn open_any(path: &Path, make: bool, patience: Duration) -> Result<File, Error> {
    let failed = failed(path);
    if !path.is_absolute() {
        return Err(failed(invalid("the path is not absolute")));
    }
    if make {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            _ => {}
        }
    }
    let folder = open_directory(path).map_err(&failed)?;
    check_entries(&folder).map_err(&failed)?;
    lock(&folder, path, File::try_lock, patience)?;
    check_filesystem(&folder).map_err(failed)?;
    Ok(folder)
}

/// Opens the folder at `path` for reading the changes of a base. Unless a sandbox that is frozen uses it, no
/// sandbox may while the file or a copy of it is open.
///
/// # Errors
/// As [`open`].
pub(super) fn open_for_reading(
    path: &Path,
    base: &BaseName,
    is_frozen: bool,
) -> Result<File, Error> {
    let folder = open_directory(path).map_err(failed(path))?;
    if !is_frozen {
        lock(&folder, path, File::try_lock_shared, PATIENCE)?;
    }
    match attribute(&folder, BASE).map_err(failed(path))? {
        Some(known) if known != base.identity().as_bytes() => Err(failed(path)(of_another(&known))),
        _ => Ok(folder),
    }
}

fn lock(
    folder: &File,
    path: &Path,
    attempt: impl Fn(&File) -> Result<(), TryLockError>,
    patience: Duration,
) -> Result<(), Error> {
    let start = Instant::now();
    loop {
        match attempt(folder) {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if start.elapsed() < patience => {
                std::thread::sleep(POLL);
            }
            Err(TryLockError::WouldBlock) => return Err(Error::UpperInUse(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(path)(error)),
        }
    }
}

/// Returns the size in bytes of the filesystem that a folder is on.
pub(super) fn capacity(folder: &File) -> io::Result<u64> {
    let room = fstatvfs(folder)?;
    Ok(room.f_blocks.saturating_mul(room.f_frsize))
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::UpperFolder {
        path: path.clone(),
        source,
    }
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.into())
}

fn open_directory(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    options.read(true).custom_flags(flags).open(path)
}

/// Checks that the folder has nothing but a sandbox's changes: the guest reaches all of it.
fn check_entries(folder: &File) -> io::Result<()> {
    let other = |name: &CStr, why: &str| {
        let name = String::from_utf8_lossy(name.to_bytes());
        Err(invalid(format!("`{name}` in it {why}")))
    };
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if DIRECTORIES.contains(&name) {
            let kind = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
            if FileType::from_raw_mode(kind) != FileType::Directory {
                return other(name, "is not a directory");
            }
        } else if ![c".", c"..", FILE, RENAMED].contains(&name) {
            return other(name, "is not a sandbox's");
        }
    }
    Ok(())
}

/// Checks that the filesystem has what overlayfs needs of it: whiteouts, also in place of a file that
/// is renamed, and extended attributes of users.
fn check_filesystem(folder: &File) -> io::Result<()> {
    const ATTRIBUTE: &CStr = c"user.overlay.check";
    let why = |what: &'static str| {
        move |error: Errno| {
            let error = io::Error::from(error);
            io::Error::new(error.kind(), format!("{what}: {error}"))
        }
    };
    // What the filesystem lacks is not a wrong argument, as one of the numbers would have it.
    let lacks = |what: &'static str| {
        move |error: Errno| match error {
            Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM => io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{what}: {}", io::Error::from(error)),
            ),
            error => why(what)(error),
        }
    };
    let remove = || match unlinkat(folder, FILE, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    };
    remove().map_err(why("removing the file .check in it"))?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(folder, FILE, flags, Mode::RUSR | Mode::WUSR).map_err(why("making a file in it"))?;
    renameat_with(folder, FILE, folder, RENAMED, RenameFlags::WHITEOUT).map_err(lacks(
        "its filesystem leaves no whiteout where a file was (RENAME_WHITEOUT)",
    ))?;
    unlinkat(folder, RENAMED, AtFlags::empty()).map_err(why("removing a file in it"))?;
    let there = statat(folder, FILE, AtFlags::SYMLINK_NOFOLLOW).map_err(why("looking at it"))?;
    remove().map_err(why("removing the file .check in it"))?;
    if FileType::from_raw_mode(there.st_mode) != FileType::CharacterDevice || there.st_rdev != 0 {
        let what = "its filesystem makes no whiteouts";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    fsetxattr(folder.as_fd(), ATTRIBUTE, b"y", XattrFlags::empty())
        .and_then(|()| fremovexattr(folder.as_fd(), ATTRIBUTE))
        .map_err(lacks("its filesystem has no extended attributes of users"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(digit: char) -> BaseName {
        BaseName::Image(micabox_spec::ImageName {
            reference: Some("debian:12".into()),
            digest: format!("sha256:{}", String::from(digit).repeat(64)),
            trim: micabox_image::Trim::default(),
        })
    }

    fn open(path: &Path, make: bool, patience: Duration) -> Result<File, Error> {
        super::open(path, &image('a'), make, patience)
    }

    fn open_for_reading(path: &Path, is_frozen: bool) -> Result<File, Error> {
        super::open_for_reading(path, &image('a'), is_frozen)
    }

    fn names(path: &Path) -> Vec<std::ffi::OsString> {
        let entries = fs::read_dir(path).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_folder_has_one_sandbox_at_a_time() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("changes");
        let refused = |result| matches!(result, Err(Error::UpperInUse(_)));
        assert!(open(&path, false, Duration::ZERO).is_err());
        let first = open(&path, true, Duration::ZERO).unwrap();
        assert!(names(&path).is_empty());
        assert!(refused(open(&path, true, Duration::ZERO)));
        assert!(refused(open_for_reading(&path, false)));
        // The server's copy keeps the lock.
        let copy = first.try_clone().unwrap();
        drop(first);
        open_for_reading(&path, true).unwrap();
        assert!(refused(open(&path, true, Duration::ZERO)));
        drop(copy);
        let reader = open_for_reading(&path, false).unwrap();
        open_for_reading(&path, false).unwrap();
        assert!(refused(open(&path, true, Duration::ZERO)));
        drop(reader);
        open(&path, false, Duration::ZERO).unwrap();
    }

    #[test]
    fn a_folder_has_nothing_else() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path();
        for name in ["upper", "work", "upper.new"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        fs::write(path.join(".check"), "of one that was cut off").unwrap();
        open(path, true, Duration::ZERO).unwrap();
        fs::remove_dir(path.join("upper")).unwrap();
        let problem = || {
            let error = open(path, true, Duration::ZERO).unwrap_err();
            error.to_string()
        };
        std::os::unix::fs::symlink("/etc", path.join("upper")).unwrap();
        assert!(problem().contains("`upper` in it is not a directory"));
        fs::remove_file(path.join("upper")).unwrap();
        fs::write(path.join("notes"), "").unwrap();
        assert!(problem().contains("`notes` in it is not a sandbox's"));
        let relative = open(Path::new("relative"), true, Duration::ZERO);
        assert!(relative.unwrap_err().to_string().contains("not absolute"));
    }

    #[test]
    fn a_folder_with_the_changes_of_another_image_is_refused() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path();
        let open = |digit| super::open(path, &image(digit), true, Duration::ZERO).map(drop);
        let read = |digit| super::open_for_reading(path, &image(digit), false).map(drop);
        // Without changes it is for any image.
        open('a').unwrap();
        open('b').unwrap();
        fs::create_dir(path.join("upper")).unwrap();
        open('b').unwrap();
        read('b').unwrap();
        for refused in [open('a'), read('a')] {
            let error = refused.unwrap_err();
            let why = std::error::Error::source(&error).map(ToString::to_string);
            let said = format!("{error}: {}", why.unwrap_or_default());
            assert!(
                said.contains("it has changes of another image, sha256:bbb"),
                "{said}"
            );
        }
        // One of an older version has no record, and gets one.
        fremovexattr(File::open(path).unwrap(), BASE).unwrap();
        read('a').unwrap();
        open('a').unwrap();
        open('b').unwrap_err();
    }
}
