//! `mica ext4 export`

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use micabox_ext4::export::export;

use super::{about, bytes, open};
use crate::Outcome;
use crate::failure::Failure;
use crate::output::{raw, stdout_is_terminal, write_stderr};

/// Bytes of the archive written at once.
const BUFFER: usize = 1 << 20;

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
    let mut filesystem = open(&args.file)?;
    let directory = filesystem
        .resolve(bytes(&args.path))
        .map_err(about(&args.file))?;
    let output: Box<dyn Write> = if to_stdout {
        Box::new(raw::stdout())
    } else {
        Box::new(File::create(&args.archive).map_err(about(&args.archive))?)
    };
    let output = BufWriter::with_capacity(BUFFER, output);
    let exported =
        export(&mut filesystem, directory, output).map_err(|error| Failure::of(&error))?;
    for socket in exported.sockets {
        let path = socket.escape_ascii();
        write_stderr(&format!("mica: /{path}: a socket; archives have none\n"));
    }
    Ok(0)
}
