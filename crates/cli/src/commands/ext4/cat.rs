//! `mica ext4 cat`

use std::path::PathBuf;

use micabox_parsers::ext4;

use super::file::{about, bytes, open, print_notes};
use micabox_program::failure::Outcome;
use micabox_program::output::{pass_on, raw};
use micabox_program::visible;

/// Write a file's contents to stdout
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
    /// The file within it
    path: PathBuf,
}

/// Writes a file's contents.
pub fn execute(args: &Args) -> Outcome {
    let fail = |error| {
        let failure = about(&args.file)(error);
        // Of the two, it is not the file with the filesystem.
        if failure.message().ends_with(": is a directory") {
            let [file, path] = [&args.file, &args.path].map(|path| visible::path(path));
            failure.with_message(format!("{file}: `{path}` is a directory"))
        } else {
            failure
        }
    };
    let contents = ext4::read(open(&args.file)?, bytes(&args.path));
    let mut contents = contents.map_err(&fail)?;
    match pass_on(&mut contents, &mut raw::stdout()) {
        Ok(true) => print_notes(&contents.finish().map_err(&fail)?, &args.file),
        Ok(false) => {}
        Err(failure) => return Err(contents.verdict().map_or(failure, &fail)),
    }
    Ok(0)
}
