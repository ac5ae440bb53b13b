//! `mica ext4 replay`

use std::path::PathBuf;

use micabox_parsers::ext4;

use super::file::{Writable, about};
use micabox_program::failure::Outcome;
use micabox_program::output::write_stderr;

/// Replay the journal, as mounting would
///
/// Also frees files that were deleted while open. An unmounted filesystem is not changed. One that
/// is marked as having errors is then checked, and the mark is removed if nothing is wrong.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
}

/// Replays the journal.
pub fn execute(args: &Args) -> Outcome {
    let image = Writable::open(&args.file)?;
    let replayed = ext4::replay(image.file()?).map_err(about(&args.file))?;
    if replayed.had_errors {
        let path = args.file.display();
        write_stderr(&if replayed.is_sound {
            format!("mica: {path}: was marked as having errors; nothing is wrong with it\n")
        } else {
            format!(
                "mica: {path}: marked as having errors, and some are there: `mica ext4 check` \
                 lists them, `e2fsck -p` repairs them\n"
            )
        });
    }
    Ok(0)
}
