//! `mica ext4 cp`

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use micabox_overlay::host::{pack, unpack};
use micabox_parsers::{CallError, Fault, ext4};

use super::file::{Writable, about, bytes, open, print_notes};

use micabox_program::failure::{Failure, Outcome};

/// Copy files and directories into a filesystem or out of it
///
/// One of the two is a path within the filesystem, as `FILE:/path`. Directories are copied
/// with their contents. Permissions and times are kept; into the filesystem owners as well, out
/// of it no set-id bits.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The source
    from: PathBuf,
    /// The destination; into an existing directory the copy goes inside
    to: PathBuf,
}

/// Copies into a filesystem or out of one.
pub fn execute(args: &Args) -> Outcome {
    match (inside(&args.from), inside(&args.to)) {
        (Some((image, path)), None) => copy_out(image, path, &args.to),
        (None, Some((image, path))) => copy_in(&args.from, image, path),
        _ => Err(
            Failure::new("one of the two paths must be within a filesystem")
                .hint("write it as FILE:/path"),
        ),
    }
}

/// Splits `FILE:/path`.
fn inside(path: &Path) -> Option<(&Path, &Path)> {
    let text = bytes(path);
    let at = text.windows(2).position(|pair| pair == b":/")?;
    let half = |bytes| Path::new(OsStr::from_bytes(bytes));
    Some((half(text.get(..at)?), half(text.get(at + 1..)?)))
}

fn copy_out(image: &Path, path: &Path, to: &Path) -> Outcome {
    let to = if to.is_dir() {
        to.join(path.file_name().unwrap_or(OsStr::new("root")))
    } else {
        to.to_owned()
    };
    let fail = about(image);
    let archive = ext4::pack(open(image)?, bytes(path), unpack::ROOT);
    let mut archive = archive.map_err(&fail)?;
    let unpacked = match unpack::unpack(&mut archive, false, |_| Ok(to.clone())) {
        Ok(unpacked) => unpacked,
        // The error about the filesystem explains more.
        Err(problem @ unpack::Problem::Archive(_)) => {
            return Err(archive.verdict().map_or_else(|| problem.into(), fail));
        }
        // The archive of a socket is empty.
        Err(problem @ unpack::Problem::Foreign(_)) => {
            let found = archive.finish().map_err(fail)?;
            let is_socket = !found.sockets.is_empty();
            return Err(if is_socket {
                special(&to)
            } else {
                problem.into()
            });
        }
        Err(problem) => return Err(problem.into()),
    };
    let mut found = archive.finish().map_err(fail)?;
    let sockets = std::mem::take(&mut found.sockets);
    print_notes(&found, image);
    let socket = sockets.first().map(|socket| {
        let below = socket.strip_prefix(unpack::ROOT).unwrap_or_default();
        let below = below.strip_prefix(b"/").unwrap_or_default();
        to.join(OsStr::from_bytes(below))
    });
    match unpacked.special.or(socket) {
        Some(path) => Err(special(&path)),
        None => Ok(0),
    }
}

/// The failure for a special file that was left out; everything else has been copied.
fn special(path: &Path) -> Failure {
    let what = "devices, FIFOs and sockets are not copied out";
    Failure::new(format!("{}: {what}", path.display()))
}

/// Copies to a path within the filesystem, or into it if it is an existing directory.
fn copy_in(from: &Path, image: &Path, path: &Path) -> Outcome {
    let reading = about(from);
    let is_directory = fs::symlink_metadata(from).map_err(&reading)?.is_dir();
    let name = from.file_name().ok_or_else(|| {
        let what = "has no name to use for the copy";
        Failure::new(format!("{}: {what}", from.display()))
    })?;
    let locked = Writable::open(image)?;
    let file = locked.file()?;
    let into = ext4::Destination {
        path: bytes(path).to_vec(),
        name: name.as_bytes().to_vec(),
        is_directory,
    };
    let (read_end, write_end) = io::pipe().map_err(&reading)?;
    let (packed, imported) = std::thread::scope(|scope| {
        let packing = pack::Packing {
            follow: false,
            owners: true,
            special: pack::Special::Refused,
        };
        let packing = scope.spawn(move || packing.pack(from, unpack::ROOT, write_end));
        let imported = ext4::import(file, read_end.into(), Some(into));
        (packing.join(), imported)
    });
    match packed {
        // If the import has failed, its error is the cause of the closed pipe.
        Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
            return Err(Failure::of(&error));
        }
        Ok(_) => {}
        Err(_) => return Err(Failure::new("the thread that reads the files died")),
    }
    imported.map_err(|error| match &error {
        CallError::Refused(Fault::Output(_)) => Failure::of(&error),
        _ => about(image)(error),
    })?;
    Ok(0)
}
