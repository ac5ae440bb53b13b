//! Transfers changes from a worker: records of names, whose paths are put together here.

use std::io::{self, Read, Write};

use micabox_overlay::diff::{self, Change, Paths, Step};
use micabox_overlay::upper::Upper;
use micabox_overlay::view::{View, ViewError};

use crate::records;

/// Why the changes can't be listed.
#[derive(Debug, thiserror::Error)]
pub enum ChangesError {
    /// The disk or its base can't be read.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The output can't be written.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// Writes all changes of an upper layer as records.
pub fn write_changes<U: Upper>(
    view: &mut View<U>,
    output: &mut impl Write,
) -> Result<(), ChangesError> {
    diff::diff(view, |step| {
        records::write(output, step).map_err(ChangesError::from)
    })?;
    Ok(output.flush()?)
}

/// Reads the records, and calls `each` with every change.
pub fn read_changes(
    input: &mut impl Read,
    mut each: impl FnMut(Change<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut paths = Paths::default();
    while let Some(step) = records::read::<Step>(input)? {
        let wrong = "the worker's answer is malformed";
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, wrong);
        each(paths.change(&step).ok_or_else(wrong)?)?;
    }
    Ok(())
}
