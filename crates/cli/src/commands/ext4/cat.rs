//! `mica ext4 cat`

use std::io::Write;
use std::path::PathBuf;

use super::{about, bytes, open};
use crate::Outcome;
use crate::failure::Failure;
use crate::output::raw;

/// Bytes read at once.
const PIECE: usize = 1 << 20;

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
    let mut filesystem = open(&args.file)?;
    let fail = about(&args.file);
    let ino = filesystem.resolve(bytes(&args.path)).map_err(&fail)?;
    let mut stdout = raw::stdout();
    let mut buffer = vec![0; PIECE];
    let mut offset = 0;
    loop {
        let count = filesystem.read(ino, offset, &mut buffer).map_err(&fail)?;
        if count == 0 {
            return Ok(0);
        }
        offset += count as u64;
        match stdout.write_all(&buffer[..count]) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(0),
            Err(error) => return Err(Failure::of(&error).context("writing to stdout")),
        }
    }
}
