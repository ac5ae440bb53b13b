//! Publishes files so that they survive a crash: write, fsync, rename, fsync the directory.

use std::fs;
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

/// [`write`]s a value as readable JSON.
pub(crate) fn write_json(scratch: &Scratch, name: &str, value: &impl Serialize) -> Result<()> {
    let mut json = serde_json::to_vec_pretty(value)
        .map_err(io::Error::from)
        .context("encode", &scratch.path(name))?;
    json.push(b'\n');
    write(scratch, name, &json)
}

/// Writes or replaces a JSON file, atomically and durably.
pub(crate) fn publish_json(tmp: &Path, to: &Path, value: &impl Serialize) -> Result<()> {
    let scratch = Scratch::new(tmp)?;
    write_json(&scratch, "json", value)?;
    publish(&scratch.path("json"), to)
}

/// Writes or replaces a JSON file, atomically. After a crash of the machine it may be empty.
pub(crate) fn replace_json(to: &Path, value: &impl Serialize) -> Result<()> {
    let json = serde_json::to_vec(value).map_err(io::Error::from);
    let json = json.context("encode", to)?;
    let new = to.with_extension("new");
    create_directories(parent(to)?)?;
    fs::write(&new, json).context("write", &new)?;
    fs::rename(&new, to).context("publish", to)
}

/// Renames a synced file or directory to its place, making missing parents.
pub(crate) fn publish(from: &Path, to: &Path) -> Result<()> {
    place(from, to)?;
    sync_directory(parent(to)?)
}

/// Renames a synced file or directory to its place. The rename is durable once the directory is
/// synced.
pub(crate) fn place(from: &Path, to: &Path) -> Result<()> {
    create_directories(parent(to)?)?;
    fs::rename(from, to).context("publish", to)
}

/// Makes a directory and its missing parents, durably.
pub(crate) fn create_directories(directory: &Path) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
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

/// Makes additions, renames and removals in a directory durable.
pub(crate) fn sync_directory(directory: &Path) -> Result<()> {
    micabox_ground::publish::sync_directory(directory).context("sync", directory)
}

/// Removes a file durably; a missing file is not an error.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(parent(path)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).context("remove", path),
    }
}

/// As [`read_json`], for a file of [`replace_json`]: `None` also if a crash has left it empty.
pub(crate) fn read_json_that_was_kept<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() == 0 => Ok(None),
        _ => read_json(path),
    }
}

/// Reads a JSON file; `None` if it doesn't exist.
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

/// Reads a file; `None` if it doesn't exist.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error).context("read", path),
    }
}

/// Returns whether a path doesn't exist, including a path through a file.
fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Returns the names in a directory, sorted; none if it doesn't exist.
pub(crate) fn list(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context("list", directory),
    };
    let mut names = Vec::new();
    for entry in entries {
        // All names of ours are ASCII.
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
