//! Opens a machine's files, in the owner's process.

use std::fs::File;
use std::path::Path;

use crate::Error;

/// Opens a file, which must have `length` bytes if that is given. Returns the file and its length.
pub(crate) fn open(
    path: &Path,
    length: Option<u64>,
    read_only: bool,
) -> Result<(File, u64), Error> {
    let failed = |why: String| Error::File {
        path: path.to_owned(),
        why,
    };
    let file = File::options()
        .read(true)
        .write(!read_only)
        .open(path)
        .map_err(|error| failed(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| failed(error.to_string()))?;
    let actual = metadata.len();
    if let Some(length) = length.filter(|length| *length != actual) {
        return Err(failed(format!(
            "it has {actual} bytes and should have {length}"
        )));
    }
    Ok((file, actual))
}
