//! `mica ext4 export`

use std::io::Write;
use std::path::PathBuf;

use micabox_overlay::host::WholeFile;
use micabox_parsers::ext4;

use super::file::{about, bytes, open, print_notes};

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{pass_on, raw, stdout_is_terminal};

/// Pack a filesystem, or a directory of it, into a tar archive
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
    /// The archive to make; `-` for stdout
    archive: PathBuf,
    /// The directory within the filesystem
    #[arg(long, default_value = "/")]
    path: PathBuf,
}

/// Packs a filesystem.
pub fn execute(args: &Args) -> Outcome {
    let to_stdout = args.archive.as_os_str() == "-";
    if to_stdout && stdout_is_terminal() {
        return Err(Failure::new("refusing to write an archive to a terminal")
            .hint("redirect stdout to a file"));
    }
    let fail = about(&args.file);
    let archive = ext4::export(open(&args.file)?, bytes(&args.path));
    let mut archive = archive.map_err(&fail)?;
    let whole = (!to_stdout).then(|| WholeFile::create(&args.archive));
    let whole = whole.transpose().map_err(about(&args.archive))?;
    let output: &mut dyn Write = match &whole {
        Some(whole) => &mut whole.file(),
        None => &mut raw::stdout(),
    };
    match pass_on(&mut archive, output) {
        Ok(true) => {
            let found = archive.finish().map_err(&fail)?;
            if let Some(whole) = whole {
                whole.publish().map_err(about(&args.archive))?;
            }
            print_notes(&found, &args.file);
            Ok(0)
        }
        Ok(false) => Ok(0),
        Err(failure) => Err(archive.verdict().map_or(failure, &fail)),
    }
}
