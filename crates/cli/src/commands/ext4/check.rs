//! `mica ext4 check`

use std::fs::File;
use std::path::PathBuf;

use micabox_ext4::check::check;
use serde::Serialize;

use super::about;
use crate::Outcome;
use crate::output::{print, print_json};

/// Check a filesystem, as `e2fsck -fn` does; exit code 1 if something is wrong
///
/// Changes nothing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
    /// The result for scripts
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Finding {
    inode: Option<u32>,
    problem: String,
}

/// Checks a filesystem.
pub fn execute(args: &Args) -> Outcome {
    let file = File::open(&args.file).map_err(about(&args.file))?;
    let findings = check(&file);
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
        .map(|finding| format!("{finding}\n"))
        .collect();
    if findings.is_empty() {
        text.push_str("clean\n");
    }
    print(&text)?;
    Ok(code)
}
