//! `mica ext4 resize`

use std::path::PathBuf;

use micabox_parsers::ext4;
use micabox_spec::words::Bytes;
use serde::Serialize;

use super::file::{Writable, about};
use micabox_program::failure::Outcome;
use micabox_program::output::{print, print_json};

/// Grow a filesystem, and its file if need be
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file with the filesystem
    file: PathBuf,
    /// The new size, such as 16G
    #[arg(long)]
    size: Bytes,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Resized {
    block_size: u32,
    blocks_before: u64,
    blocks: u64,
    free_blocks: u64,
    inodes: u32,
}

/// Grows a filesystem.
pub fn execute(args: &Args) -> Outcome {
    let path = &args.file;
    let image = Writable::open(path)?;
    let file = image.file()?;
    let length = file.metadata().map_err(about(path))?.len();
    if length < args.size.0 {
        file.set_len(args.size.0).map_err(about(path))?;
    }
    let grown = ext4::grow(image.file()?, args.size.0);
    if grown.is_err() && length < args.size.0 {
        let _ = file.set_len(length);
    }
    let grown = grown.map_err(about(path))?;
    let resized = Resized {
        block_size: grown.block_size,
        blocks_before: grown.blocks_before,
        blocks: grown.blocks,
        free_blocks: grown.free_blocks,
        inodes: grown.inodes,
    };
    if args.json {
        print_json(&resized)?;
        return Ok(0);
    }
    print(&format!(
        "{} blocks of {} bytes, {} before; {} free\n",
        resized.blocks, resized.block_size, resized.blocks_before, resized.free_blocks
    ))?;
    Ok(0)
}
