//! Measures the cost of an inode: memory of the writer, bytes on disk, time of a merge.
//!
//! ```text
//! cargo run --release -p micabox-erofs --example measure -- write 100000
//! cargo run --release -p micabox-erofs --example measure -- merge 10 50000 [directory]
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "for a measurement any place will do"
)]

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Instant;

use micabox_erofs::merge::{Layer, Merge};
use micabox_erofs::{InodeId, Kind, Metadata, Options, Timestamp, Tree, Writer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["write", inodes] => write(inodes.parse()?),
        ["merge", layers, files] => merge(layers.parse()?, files.parse()?, std::env::temp_dir()),
        ["merge", layers, files, directory] => {
            merge(layers.parse()?, files.parse()?, directory.into())
        }
        _ => Err("see the head of this example for its arguments".into()),
    }
}

/// Returns the peak resident memory of this process in bytes.
fn peak() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(number.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024)
}

fn metadata(mode: u16, seconds: i64) -> Metadata {
    Metadata {
        mode,
        uid: 0,
        gid: 0,
        mtime: Timestamp {
            seconds: 1_700_000_000 + seconds,
            nanos: 123_456_789,
        },
        xattrs: Vec::new(),
    }
}

/// Adds directories of `in_each` files until there are `files` in total, similar to `node_modules`:
/// short directories, names of ten to thirty bytes, a time for each file.
fn fill<W: io::Write + io::Seek>(
    writer: &mut Writer<W>,
    files: usize,
    in_each: usize,
    salt: usize,
) -> micabox_erofs::Result<u64> {
    let mut names = 0;
    let top = directory(writer.tree(), None, b"node_modules", &mut names)?;
    let mut current = top;
    for i in 0..files {
        if i % in_each == 0 {
            let name = format!("some-package-{salt}-{}", i / in_each);
            current = directory(writer.tree(), Some(top), name.as_bytes(), &mut names)?;
        }
        let size = (i as u64 * 7919) % 3000;
        let data = writer.body(size, &mut io::repeat(b'x').take(size))?;
        let tree = writer.tree();
        let kind = Kind::File { size, data };
        let inode = tree.add(metadata(0o644, i as i64 % 50_000), kind);
        let name = format!("module-{i}-of-package.js");
        names += name.len() as u64;
        tree.link(current, name.as_bytes(), inode)?;
    }
    Ok(names)
}

fn directory(
    tree: &mut Tree,
    parent: Option<InodeId>,
    name: &[u8],
    names: &mut u64,
) -> micabox_erofs::Result<InodeId> {
    let inode = tree.add(metadata(0o755, 0), Kind::directory());
    *names += name.len() as u64;
    tree.link(parent.unwrap_or(tree.root()), name, inode)?;
    Ok(inode)
}

fn write(files: usize) -> Result<(), Box<dyn std::error::Error>> {
    let before = peak()?;
    let start = Instant::now();
    let options = Options {
        uuid: [0; 16],
        root: metadata(0o755, 0),
    };
    let mut writer = Writer::new(File::create("/dev/null")?, options)?;
    let names = fill(&mut writer, files, 12, 0)?;
    let filled = start.elapsed();
    let (_, summary) = writer.finish()?;
    let inodes = summary.inodes;
    let grown = peak()? - before;
    println!(
        "{inodes} inodes: {} bytes of memory and {} bytes of metadata an inode, names {}",
        grown / inodes,
        summary.metadata / inodes,
        names / inodes
    );
    println!(
        "filled in {filled:.1?}, finished in {:.1?}",
        start.elapsed() - filled
    );
    Ok(())
}

fn merge(count: usize, files: usize, out: PathBuf) -> Result<(), Box<dyn std::error::Error>> {
    let mut images = Vec::new();
    let mut names = 0;
    for number in 0..count {
        let path = out.join(format!("measure-{}-{number}.erofs", std::process::id()));
        let options = Options {
            uuid: [number as u8; 16],
            root: metadata(0o755, 0),
        };
        let mut writer = Writer::new(File::create(&path)?, options)?;
        names += fill(&mut writer, files / count, 12, number)?;
        writer.finish()?;
        images.push(File::open(&path)?);
        std::fs::remove_file(&path)?;
    }
    let layers: Vec<Layer<'_, File>> = images
        .iter()
        .map(|image| Layer {
            image,
            tag: b"layer",
        })
        .collect();
    let before = peak()?;
    for _ in 0..5 {
        let start = Instant::now();
        let merge = Merge::of(&layers, 512)?;
        let merged = start.elapsed();
        let fsmeta = out.join(format!("measure-{}.fsmeta", std::process::id()));
        let (_, written) = merge.write_fsmeta(File::create(&fsmeta)?, [1; 16])?;
        std::fs::remove_file(&fsmeta)?;
        let total = start.elapsed();
        let bytes = u64::from(written.blocks) * micabox_erofs::BLOCK_SIZE;
        println!(
            "{count} layers, {} inodes: read and merged in {merged:.1?}, written in {:.1?}, \
             together {total:.1?}; {} bytes an inode, names {}; memory {} bytes an inode",
            written.inodes,
            total - merged,
            bytes / written.inodes,
            names / written.inodes,
            (peak()? - before) / written.inodes,
        );
    }
    Ok(())
}
