//! `mica ext4 ls`

use std::io::Write;
use std::path::PathBuf;

use micabox_ext4::FileKind;
use serde::Serialize;

use super::{about, bytes, mode, open};
use crate::Outcome;
use crate::failure::Failure;
use crate::output::print_json;

/// List a directory
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
    /// The directory within it
    #[arg(default_value = "/")]
    path: PathBuf,
    /// With permissions, owners, sizes and times
    #[arg(short, long)]
    long: bool,
    /// The result for scripts
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    inode: u32,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    mtime: i64,
    target: Option<String>,
}

/// Lists a directory.
pub fn execute(args: &Args) -> Outcome {
    let mut filesystem = open(&args.file)?;
    let fail = about(&args.file);
    let directory = filesystem.resolve(bytes(&args.path)).map_err(&fail)?;
    let mut names = filesystem.read_dir(directory).map_err(&fail)?;
    names.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let mut text = Vec::new();
    let mut entries = Vec::new();
    for name in names {
        if !args.long && !args.json {
            text.extend_from_slice(&name.name);
            text.push(b'\n');
            continue;
        }
        let stat = filesystem.stat(name.ino).map_err(&fail)?;
        let target = match stat.kind() {
            Some(FileKind::Symlink) => Some(filesystem.read_link(name.ino).map_err(&fail)?),
            _ => None,
        };
        let (mode, mtime) = (mode(&stat), stat.mtime.seconds);
        let (uid, gid) = (stat.uid, stat.gid);
        if args.json {
            entries.push(Entry {
                name: String::from_utf8_lossy(&name.name).into_owned(),
                inode: name.ino,
                mode,
                links: stat.links,
                uid,
                gid,
                size: stat.size,
                mtime,
                target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
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
        text.extend_from_slice(&name.name);
        if let Some(target) = target {
            text.extend_from_slice(b" -> ");
            text.extend_from_slice(&target);
        }
        text.push(b'\n');
    }
    if args.json {
        print_json(&entries)?;
        return Ok(0);
    }
    match std::io::stdout().lock().write_all(&text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::of(&error).context("writing to stdout"))
        }
        _ => Ok(0),
    }
}
