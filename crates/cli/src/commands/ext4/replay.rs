//! `mica ext4 replay`

use std::path::PathBuf;

use micabox_ext4::check::clear_errors;
use micabox_ext4::{Ext4, Options};

use super::{about, writable};
use crate::Outcome;
use crate::output::write_stderr;

/// Put what the journal has in its place, as mounting would
///
/// Also frees what was deleted while it was open. A filesystem that was unmounted stays as it
/// is. One that is marked as having errors is checked then: if nothing is wrong, the mark goes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
}

/// Replays the journal.
pub fn execute(args: &Args) -> Outcome {
    let mut file = writable(&args.file)?;
    let options = Options {
        despite_errors: true,
        ..Options::default()
    };
    let filesystem = Ext4::open(&mut file, options).map_err(about(&args.file))?;
    let has_errors = filesystem.has_errors();
    filesystem.close().map_err(about(&args.file))?;
    if has_errors {
        let findings = clear_errors(&mut file).map_err(about(&args.file))?;
        let path = args.file.display();
        write_stderr(&if findings.is_empty() {
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
