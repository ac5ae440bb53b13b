//! When an image was last used: its record's time of modification.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::image_record::RECORD;

/// Returns whether nothing was started from the image in this directory for so long: [`note_use`].
pub(super) fn is_unused_for(directory: &Path, time: Duration) -> bool {
    let used = fs::metadata(directory.join(RECORD)).and_then(|metadata| metadata.modified());
    let since = used.map(|used| SystemTime::now().duration_since(used).unwrap_or_default());
    since.is_ok_and(|since| since >= time)
}

/// Notes that the image in this directory is used: its record's time of modification. Once an hour is enough.
pub(super) fn note_use(directory: &Path) {
    const OFTEN: Duration = Duration::from_secs(3600);
    let path = directory.join(RECORD);
    if !is_unused_for(directory, OFTEN) {
        return;
    }
    // A store that can't be written to is not packed either.
    let _ = File::options()
        .write(true)
        .open(path)
        .and_then(|file| file.set_modified(SystemTime::now()));
}
