//! `mica ext4 ls`

use std::path::PathBuf;

use micabox_ext4::FileKind;
use micabox_parsers::ext4;
use serde::Serialize;

use super::file::{about, bytes, open, print_notes};
use super::mode::mode;
use micabox_program::failure::Outcome;
use micabox_program::output::{json_name, print_json, stdout_is_terminal, write_stdout};
use micabox_program::visible;

/// List a directory
///
/// On a terminal, names have escapes as in the shell's $'...' (`\n`, `\x1b`, `\xff`, `\\`);
/// elsewhere they are unchanged. In JSON, one that is not UTF-8 has its bytes in `name_hex`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
    /// The directory within it
    #[arg(default_value = "/")]
    path: PathBuf,
    /// Show permissions, owners, sizes and times
    #[arg(short, long)]
    long: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    inode: u32,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    mtime: i64,
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_hex: Option<String>,
}

/// Lists a directory.
pub fn execute(args: &Args) -> Outcome {
    let fail = about(&args.file);
    let is_long = args.long || args.json;
    let names = ext4::list(open(&args.file)?, bytes(&args.path), is_long);
    let mut names = names.map_err(&fail)?;
    let is_terminal = stdout_is_terminal();
    let shown = |name: &[u8]| {
        if is_terminal {
            visible::name(name).into_bytes()
        } else {
            name.to_vec()
        }
    };
    let mut text = Vec::new();
    let mut entries = Vec::new();
    while let Some(name) = names.next_record().map_err(&fail)? {
        let Some(stat) = name.attributes else {
            text.extend(shown(&name.name));
            text.push(b'\n');
            continue;
        };
        let (mode, mtime) = (mode(&stat), stat.mtime.0);
        let (uid, gid) = (stat.uid, stat.gid);
        if args.json {
            let (name_text, name_hex) = json_name(&name.name);
            let (target, target_hex) = stat.target.as_deref().map(json_name).unzip();
            entries.push(Entry {
                name: name_text,
                name_hex,
                inode: stat.inode,
                mode,
                links: stat.links,
                uid,
                gid,
                size: stat.size,
                mtime,
                target,
                target_hex: target_hex.flatten(),
            });
            continue;
        }
        let size = match stat.kind() {
            Some(FileKind::CharDevice | FileKind::BlockDevice) => {
                format!("{}, {}", stat.device.0, stat.device.1)
            }
            _ => stat.size.to_string(),
        };
        let line = format!(
            "{mode} {:>3} {uid:>5} {gid:>5} {size:>10} {mtime:>10} ",
            stat.links
        );
        text.extend_from_slice(line.as_bytes());
        text.extend(shown(&name.name));
        if let Some(target) = stat.target {
            text.extend_from_slice(b" -> ");
            text.extend(shown(&target));
        }
        text.push(b'\n');
    }
    print_notes(&names.finish().map_err(&fail)?, &args.file);
    if args.json {
        print_json(&entries)?;
        return Ok(0);
    }
    write_stdout(&text)?;
    Ok(0)
}
