//! Files that are there whole or not at all, also after a crash: written beside their place, synced, renamed to it, and
//! the directory synced.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::{hex, random};

/// Writes or replaces a file, atomically and durably. It is its owner's alone (mode 0600).
///
/// # Errors
/// Errors of the filesystem. What was at `path` is still there then, unless only the last step failed: the sync of the
/// directory.
pub fn publish(path: &Path, contents: &[u8]) -> io::Result<()> {
    let new = beside(path)?;
    write(&new, contents)
        .and_then(|()| fs::rename(&new, path))
        .inspect_err(|_| {
            let _ = fs::remove_file(&new);
        })?;
    sync_directory(directory(path))
}

/// Makes additions, renames and removals in a directory durable.
///
/// # Errors
/// Errors of opening it and of the disk.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Returns the directory that a path is in; of a name alone, the current one.
pub fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Returns a path in the same directory that no file has.
fn beside(path: &Path) -> io::Result<PathBuf> {
    Ok(directory(path).join(format!(".new-{}", hex(random::<8>()?))))
}

fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let names = || fs::read_dir(directory.path()).unwrap().count();
        for text in ["first", "second"] {
            publish(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(), 1);
        }
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let taken = directory.path().join("taken");
        fs::create_dir_all(taken.join("full")).unwrap();
        publish(&taken, b"text").unwrap_err();
        assert_eq!(names(), 2);
    }

    #[test]
    fn a_name_alone_is_in_the_current_directory() {
        assert_eq!(directory(Path::new("file")), Path::new("."));
        assert_eq!(directory(Path::new("/a/file")), Path::new("/a"));
    }
}
