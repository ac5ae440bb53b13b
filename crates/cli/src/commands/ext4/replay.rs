//! `mica ext4 replay`

use std::path::PathBuf;

use super::{about, open_for_writing};
use crate::Outcome;

/// Put what the journal has in its place, as mounting would
///
/// Also frees what was deleted while it was open. A filesystem that was unmounted stays as it
/// is.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
}

/// Replays the journal.
pub fn execute(args: &Args) -> Outcome {
    let filesystem = open_for_writing(&args.file)?;
    filesystem.close().map_err(about(&args.file))?;
    Ok(0)
}
