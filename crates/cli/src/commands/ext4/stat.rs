//! `mica ext4 stat`

use std::collections::BTreeMap;
use std::path::PathBuf;

use micabox_parsers::ext4;
use serde::Serialize;

use super::file::{about, bytes, open, print_notes};
use super::mode::mode;
use micabox_program::failure::Outcome;
use micabox_program::output::{print, print_json};

/// Show the attributes of an inode
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
    /// The path within it; of a symbolic link, the link
    #[arg(default_value = "/")]
    path: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown {
    inode: u32,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    blocks: u64,
    device: Option<(u32, u32)>,
    /// Seconds and nanoseconds.
    atime: (i64, u32),
    mtime: (i64, u32),
    ctime: (i64, u32),
    crtime: (i64, u32),
    target: Option<String>,
    /// Values that are not text have escapes.
    xattrs: BTreeMap<String, String>,
}

/// Shows an inode.
pub fn execute(args: &Args) -> Outcome {
    let shown = ext4::show(open(&args.file)?, bytes(&args.path));
    let ext4::Shown {
        attributes: stat,
        xattrs,
        notes,
    } = shown.map_err(about(&args.file))?;
    print_notes(&notes, &args.file);
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let xattrs = xattrs.iter();
    let shown = Shown {
        inode: stat.inode,
        mode: mode(&stat),
        links: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        blocks: stat.blocks,
        device: (stat.device != (0, 0)).then_some(stat.device),
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
        crtime: stat.crtime,
        target: stat.target.as_deref().map(text),
        xattrs: xattrs
            .map(|(name, value)| (text(name), text(value)))
            .collect(),
    };
    if args.json {
        print_json(&shown)?;
        return Ok(0);
    }
    let mut text = format!(
        "inode   {}\nmode    {}\nlinks   {}\nowner   {}:{}\nsize    {} bytes in {} blocks of 512\n",
        shown.inode, shown.mode, shown.links, shown.uid, shown.gid, shown.size, shown.blocks
    );
    if let Some((major, minor)) = shown.device {
        text.push_str(&format!("device  {major}, {minor}\n"));
    }
    for (name, (seconds, nanos)) in [
        ("atime", shown.atime),
        ("mtime", shown.mtime),
        ("ctime", shown.ctime),
        ("crtime", shown.crtime),
    ] {
        text.push_str(&format!("{name:<8}{seconds}.{nanos:09}\n"));
    }
    if let Some(target) = &shown.target {
        text.push_str(&format!("target  {target}\n"));
    }
    for (name, value) in &shown.xattrs {
        text.push_str(&format!("xattr   {name}=\"{value}\"\n"));
    }
    print(&text)?;
    Ok(0)
}
