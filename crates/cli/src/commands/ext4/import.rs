//! `mica ext4 import`

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use micabox_parsers::{CallError, Fault, ext4};

use super::file::{Writable, about};

use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, size};

/// Unpack a tar archive into a filesystem
///
/// Keeps owners, times, extended attributes, access control lists, devices, hard links and
/// holes. Existing files are replaced.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
    /// The archive, not compressed; `-` for stdin
    archive: PathBuf,
}

/// Unpacks an archive.
pub fn execute(args: &Args) -> Outcome {
    let image = Writable::open(&args.file)?;
    let opened = if args.archive.as_os_str() == "-" {
        io::stdin().as_fd().try_clone_to_owned()
    } else {
        File::open(&args.archive).map(OwnedFd::from)
    };
    let archive = opened.map_err(about(&args.archive))?;
    let imported = ext4::import(image.file()?, archive, None);
    let (members, bytes) = imported.map_err(|error| match &error {
        CallError::Refused(Fault::Asked(_)) => about(&args.archive)(error),
        CallError::Refused(Fault::Output(_)) => Failure::of(&error),
        _ => about(&args.file)(error),
    })?;
    print(&format!("{members} members, {} of contents\n", size(bytes)))?;
    Ok(0)
}
