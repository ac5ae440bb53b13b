//! Publication that survives a crash: write, fsync, rename, fsync the directory.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{Context, Error, Result};
use super::scratch::Scratch;

/// Writes and syncs a file in `scratch`.
pub(crate) fn write(scratch: &Scratch, name: &str, bytes: &[u8]) -> Result<()> {
    let path = scratch.path(name);
    let mut file = scratch.create(name)?;
    file.write_all(bytes).context("write", &path)?;
    file.sync_all().context("sync", &path)
}

/// [`write`]s a value as JSON that a person can read.
pub(crate) fn write_json(scratch: &Scratch, name: &str, value: &impl Serialize) -> Result<()> {
    let mut json = serde_json::to_vec_pretty(value)
        .map_err(io::Error::from)
        .context("encode", &scratch.path(name))?;
    json.push(b'\n');
    write(scratch, name, &json)
}

/// Writes a JSON file that wasn't there or replaces it, at once and for good.
pub(crate) fn publish_json(tmp: &Path, to: &Path, value: &impl Serialize) -> Result<()> {
    let scratch = Scratch::new(tmp)?;
    write_json(&scratch, "json", value)?;
    publish(&scratch.path("json"), to)
}

/// Renames what is synced already to its place, making directories on the way.
pub(crate) fn publish(from: &Path, to: &Path) -> Result<()> {
    place(from, to)?;
    sync_directory(parent(to)?)
}

/// Renames what is synced already to its place, where it stays only once the directory is
/// synced.
pub(crate) fn place(from: &Path, to: &Path) -> Result<()> {
    create_directories(parent(to)?)?;
    fs::rename(from, to).context("publish", to)
}

/// Makes a directory and those above it, so that they are there after a crash.
pub(crate) fn create_directories(directory: &Path) -> Result<()> {
    match fs::create_dir(directory) {
        Ok(()) => sync_directory(parent(directory)?),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_directories(parent(directory)?)?;
            create_directories(directory)
        }
        Err(error) => Err(error).context("create", directory),
    }
}

/// Makes additions, renames and removals in a directory last.
pub(crate) fn sync_directory(directory: &Path) -> Result<()> {
    File::open(directory)
        .and_then(|file| file.sync_all())
        .context("sync", directory)
}

/// Removes a file for good; one that isn't there is no error.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(parent(path)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).context("remove", path),
    }
}

/// Reads a JSON file; `None` if there is none.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let Some(bytes) = read(path)? else {
        return Ok(None);
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| Error::Damaged {
            path: path.to_owned(),
            problem: error.to_string(),
        })
}

/// Reads a file; `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error).context("read", path),
    }
}

/// Whether a path leads nowhere, be it because a file is in the way.
fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// The names in a directory, sorted; none if it isn't there.
pub(crate) fn list(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context("list", directory),
    };
    let mut names = Vec::new();
    for entry in entries {
        // Nothing of ours has a name that isn't ASCII.
        if let Ok(name) = entry.context("list", directory)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn parent(path: &Path) -> Result<&Path> {
    let error = || io::Error::from(io::ErrorKind::InvalidInput);
    path.parent()
        .ok_or_else(error)
        .context("find the directory of", path)
}
