//! `mica ext4 check`

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use micabox_ext4::format::superblock::MAGIC;
use micabox_parsers::ext4;
use serde::Serialize;

use super::file::about;
use micabox_program::failure::{Failure, Outcome};
use micabox_program::output::{print, print_json};
use micabox_program::visible;

/// Check a filesystem, as `e2fsck -fn` does
///
/// Changes nothing. Exit codes: 0 clean, 1 damaged, 2 not checked, as the file is not an ext4
/// filesystem or can't be read.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Finding {
    inode: Option<u32>,
    problem: String,
}

/// Exit code if nothing could be checked.
const NOT_CHECKED: u8 = 2;

/// Opens a file with ext4's magic.
fn open(path: &Path) -> Result<File, Failure> {
    let file = File::open(path).map_err(about(path))?;
    let mut magic = [0; 2];
    // The superblock begins at byte 1024; the magic is at its byte 56.
    let read = file.read_exact_at(&mut magic, 1024 + 56);
    match read {
        Ok(()) if u16::from_le_bytes(magic) == MAGIC => Ok(file),
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(about(path)(error)),
        _ => Err(Failure::new(format!(
            "cannot check `{}`: not an ext4 filesystem",
            visible::path(path)
        ))
        .hint("if it was one, `e2fsck -b 32768 FILE` tries its backup superblock")),
    }
}

/// Checks a filesystem.
pub fn execute(args: &Args) -> Outcome {
    let file = open(&args.file).map_err(|failure| failure.code(NOT_CHECKED))?;
    let findings = ext4::findings(file).map_err(about(&args.file))?;
    let code = u8::from(!findings.is_empty());
    if args.json {
        let findings: Vec<_> = findings
            .into_iter()
            .map(|finding| Finding {
                inode: finding.inode,
                problem: finding.problem,
            })
            .collect();
        print_json(&findings)?;
        return Ok(code);
    }
    let mut text: String = findings
        .iter()
        .map(|finding| format!("{}\n", finding.text))
        .collect();
    if findings.is_empty() {
        text.push_str("clean\n");
    }
    print(&text)?;
    Ok(code)
}
