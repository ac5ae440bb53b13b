//! The file with a sandbox's record.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use micabox_error::Error;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{Record, Status};

const STATE: &str = "state.json";

/// A file with room for the next record.
const SPARE: &str = "state.spare";

/// Bytes by which a record may grow without new blocks on a full disk: the reason of the end.
const RESERVE: u64 = 4096;

/// Bytes of a filesystem's unit of allocation.
const BLOCK: u64 = 4096;

/// Publishes a record: writes it to the spare file and exchanges that with the current one. The
/// spare file has its blocks already, so the record of an end can be written on a full disk. The
/// caller holds the lock on names, as do readers, so readers never see a spare file being written.
/// Only a record of an end, or of a sandbox with changes to keep, is synced to disk: after a crash
/// of the host no sandbox runs, and a damaged record without a disk is removed.
pub(super) fn write(directory: &Path, record: &Record) -> Result<(), Error> {
    let publish = || {
        let text = serde_json::to_vec_pretty(record)?;
        let (current, spare) = (directory.join(STATE), directory.join(SPARE));
        let file = fill(&spare, &text)?;
        let matters = matches!(record.status, Status::Created | Status::Exited { .. })
            || record.spec.upper.is_kept();
        let durable = matters && !record.auto_remove;
        if durable {
            file.sync_all()?;
        }
        exchange(&spare, &current)?;
        if durable {
            File::open(directory)?.sync_all()?;
        }
        if !spare.exists() {
            // A failure is ignored: only the last record needs the room, and this may not be the
            // one before it.
            let _ = fill(&spare, &vec![b' '; text.len()]);
        }
        Ok(())
    };
    publish().map_err(Error::state("writing", &directory.join(STATE)))
}

/// Writes `text` into a file, padded with spaces to the file's length. If the file is too short, it
/// grows to hold `text` and [`RESERVE`].
fn fill(path: &Path, text: &[u8]) -> io::Result<File> {
    let mut options = File::options();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    let file = options.open(path)?;
    let needs = text.len() as u64;
    let length = match file.metadata()?.len() {
        had if needs <= had => had,
        _ => (needs + RESERVE).next_multiple_of(BLOCK),
    };
    let mut bytes = text.to_vec();
    bytes.resize(usize::try_from(length).unwrap_or_default(), b' ');
    file.write_all_at(&bytes, 0)?;
    Ok(file)
}

/// Exchanges two files, or replaces the second with the first where that is not supported.
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(_) => fs::rename(new, old),
    }
}

/// Reads the record in a sandbox's directory; None if it is missing, damaged, or of another version of mica.
pub(super) fn read(directory: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(directory.join(STATE)).ok()?).ok()
}
