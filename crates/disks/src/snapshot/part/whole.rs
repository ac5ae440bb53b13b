//! Makes a memory of which only a part is here whole.

use std::fs;
use std::io;

use micabox_error::Error;
use micabox_ground::publish::sync_directory;
use micabox_image::Store;
use micabox_state::{Sandboxes, Stamp, Written};

use super::super::memory::{describe, digest};
use super::super::names::{MANIFEST, MEMORY, PART};
use super::super::{Snapshots, write_record};
use super::open::{Opened, is_same};

/// Fetches the rest of the memory of the snapshot `name`, and does nothing if all of it is here. `watch` is called with the
/// bytes that are here and those of all, and returns whether to continue. Returns whether the memory is whole now: it is
/// not if `watch` has ended it, or if the snapshot was removed meanwhile.
///
/// # Errors
/// [`Error::NoSuchSnapshot`]; [`Error::SnapshotIncomplete`]; [`Error::SnapshotRefused`] if the whole is not what the
/// snapshot's config says; [`Error::State`].
pub(in crate::snapshot) fn complete(
    store: &Store,
    name: &str,
    watch: &(dyn Fn(u64, u64) -> bool + Sync),
) -> Result<bool, Error> {
    if is_whole(store, name)? {
        return Ok(true);
    }
    match Opened::of(store, name) {
        Ok(opened) => opened.complete(watch),
        // Another process has made it whole.
        Err(Error::State { .. } | Error::SnapshotIncomplete { .. }) if is_whole(store, name)? => {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Returns whether all of a snapshot's memory is here, if it has one.
fn is_whole(store: &Store, name: &str) -> Result<bool, Error> {
    let sandboxes = Sandboxes::open(store)?;
    let snapshot = Snapshots(&sandboxes).get(name)?;
    Ok(!snapshot.directory.join(PART).exists())
}

impl Opened {
    /// As [`complete`].
    pub(super) fn complete(
        &self,
        watch: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<bool, Error> {
        let all = self.file.all_bytes();
        let filled = self
            .file
            .fill(&|here| watch(here, all) && self.is_wanted())
            .map_err(|error| Error::SnapshotIncomplete {
                name: self.snapshot.name.clone(),
                problem: error.to_string(),
            })?;
        if filled {
            self.finish()?;
        }
        Ok(filled)
    }

    /// Makes the snapshot one like any other, whose memory is all here. Its digest is compared with that of the snapshot's
    /// config, which the record has from the start. A memory with another one gets its name as well: it is refused as one
    /// that was altered, by this and by every later start.
    fn finish(&self) -> Result<(), Error> {
        let directory = &self.snapshot.directory;
        let (part, memory) = (directory.join(PART), directory.join(MEMORY));
        let file = self.file.file();
        let found = file.sync_all().and_then(|()| digest(file));
        let found = found.map_err(Error::state("reading", &part))?;
        let _names = self.sandboxes.directory().lock()?;
        if !is_same(&part, file) {
            return Ok(());
        }
        let all = Snapshots(&self.sandboxes);
        let mut snapshot = all.get(&self.snapshot.name)?;
        let rename = || -> io::Result<Stamp> {
            fs::rename(&part, &memory)?;
            let _ = fs::remove_file(directory.join(MANIFEST));
            sync_directory(directory)?;
            Stamp::of(&memory)
        };
        let stamp = rename().map_err(Error::state("renaming", &part))?;
        let Some(machine) = &mut snapshot.memory else {
            return Ok(());
        };
        let expected = machine.written().map(|written| written.sha256.clone());
        if expected.as_ref() != Some(&found) {
            let problem = format!(
                "its memory has the digest {found}, and its config says {}",
                expected.unwrap_or_default()
            );
            let name = snapshot.name;
            return Err(Error::SnapshotRefused { name, problem });
        }
        // A start that finds another stamp compares the digest.
        machine.set_written(Written {
            sha256: found,
            stamp,
        });
        describe(directory, machine)?;
        write_record(&snapshot).map_err(Error::state("writing", directory))
    }
}
