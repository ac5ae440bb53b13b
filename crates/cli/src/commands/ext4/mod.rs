//! `mica ext4`: works on filesystems in files, without mounting them. Workers in the jail read
//! them.

mod cat;
mod check;
mod cp;
mod export;
mod import;
mod ls;
mod mkfs;
mod replay;
mod resize;
mod stat;

use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use micabox::Notes;
use micabox::jailed::ext4::Attributes;
use micabox_ext4::FileKind;

use crate::commands::notes;
use crate::failure::Failure;
use crate::output::write_stderr;
use crate::{Outcome, visible};

/// Make, read, change and check ext4 filesystems in files
///
/// Needs neither root nor a mount. A dirty journal is replayed: in memory by commands that only
/// read, on disk by those that write.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Mkfs(mkfs::Args),
    Check(check::Args),
    Replay(replay::Args),
    Resize(resize::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Stat(stat::Args),
    Cp(cp::Args),
    Import(import::Args),
    Export(export::Args),
}

/// Runs a subcommand.
pub fn execute(args: &Args) -> Outcome {
    match &args.command {
        Command::Mkfs(args) => mkfs::execute(args),
        Command::Check(args) => check::execute(args),
        Command::Replay(args) => replay::execute(args),
        Command::Resize(args) => resize::execute(args),
        Command::Ls(args) => ls::execute(args),
        Command::Cat(args) => cat::execute(args),
        Command::Stat(args) => stat::execute(args),
        Command::Cp(args) => cp::execute(args),
        Command::Import(args) => import::execute(args),
        Command::Export(args) => export::execute(args),
    }
}

/// Makes a failure of an error and its file.
fn about<E: std::error::Error + 'static>(path: &Path) -> impl Fn(E) -> Failure {
    move |error| Failure::of(&error).context(&visible::path(path))
}

/// Opens a file to read the filesystem in it.
fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(about(path))
}

/// Prints notes about a filesystem that was read.
fn print_notes(found: &Notes, path: &Path) {
    if found.damaged {
        write_stderr(&format!(
            "mica: {}: marked as having errors: the result may be incomplete; `mica ext4 \
             replay` clears the mark if nothing is wrong\n",
            visible::path(path)
        ));
    }
    notes::print_sockets(found);
}

/// A filesystem's file, open and locked for writing.
struct Writable(File);

impl Writable {
    /// Opens and locks an existing file.
    fn open(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(about(path))?;
        // Two writers would damage the filesystem. A virtual machine's disk is locked, too.
        file.try_lock().map_err(|_| {
            Failure::new(format!(
                "cannot write to `{}`: it is in use",
                visible::path(path)
            ))
        })?;
        Ok(Self(file))
    }

    /// Returns the file again, to give to a worker.
    fn file(&self) -> Result<File, Failure> {
        self.0.try_clone().map_err(|error| Failure::of(&error))
    }
}

impl Drop for Writable {
    /// Unlocks explicitly: a worker that has replied holds the file until it has exited, and the
    /// next command must not find it in use.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Returns a path within a filesystem as bytes.
fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Parses a number of bytes: `512M`, `8G`; powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text
        .get(digits.len()..)
        .unwrap_or("")
        .to_ascii_lowercase()
        .as_str()
    {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err("expected a number of bytes such as 512M or 8G".into()),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "expected a number of bytes such as 512M or 8G")?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "that is more than 2^64 bytes".into())
}

/// Returns the letter for a type, as in `ls -l`.
fn letter(stat: &Attributes) -> char {
    match stat.kind() {
        Some(FileKind::File) => '-',
        Some(FileKind::Directory) => 'd',
        Some(FileKind::Symlink) => 'l',
        Some(FileKind::CharDevice) => 'c',
        Some(FileKind::BlockDevice) => 'b',
        Some(FileKind::Fifo) => 'p',
        Some(FileKind::Socket) => 's',
        None => '?',
    }
}

/// Formats type and permissions, as in `ls -l`.
fn mode(stat: &Attributes) -> String {
    let mut text = String::from(letter(stat));
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = stat.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, stat.mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_of_filesystems_have_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("8G", 8 << 30),
            ("1tib", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "G", "-1", "1X", "1.5G", "99999999999T"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
