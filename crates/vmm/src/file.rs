//! Files of a machine, which its owner opens.

use std::fs::File;
use std::path::Path;

use crate::Error;

/// Opens a file, of `length` bytes if that is known already; and its length.
pub(crate) fn open(
    path: &Path,
    length: Option<u64>,
    read_only: bool,
) -> Result<(File, u64), Error> {
    let failed = |why: String| Error::File {
        path: path.to_owned(),
        why,
    };
    let file = File::options().read(true).write(!read_only).open(path);
    let file = file.map_err(|error| failed(error.to_string()))?;
    let actual = file.metadata().map_err(|error| failed(error.to_string()))?;
    let actual = actual.len();
    if let Some(length) = length.filter(|length| *length != actual) {
        return Err(failed(format!(
            "it has {actual} bytes and should have {length}"
        )));
    }
    Ok((file, actual))
}
