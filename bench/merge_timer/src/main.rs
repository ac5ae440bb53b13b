//! Merges layers again and again and prints what that took as JSON.
//!
//! `merge-timer ROUNDS OUT LAYER...`: layers are EROFS images, the lowest first, named by
//! their diff IDs. One round opens them, reads their metadata, merges and writes `OUT`;
//! flushing `OUT` to disk is timed apart.

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use micabox_erofs::merge::{Layer, Merge, Written};
use micabox_erofs::{BLOCK_SIZE, Cached, Kind};

/// 2 MiB in blocks: what the store pads its images to.
const ALIGNMENT: u32 = 512;

struct Round {
    /// Seconds.
    merge: f64,
    /// Of which on a processor.
    cpu: f64,
    flush: f64,
    merged: Merge,
    written: Written,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let usage = "merge-timer ROUNDS OUT LAYER...";
    let rounds: usize = arguments
        .next()
        .ok_or(usage)?
        .to_str()
        .ok_or(usage)?
        .parse()?;
    let out = PathBuf::from(arguments.next().ok_or(usage)?);
    let layers: Vec<PathBuf> = arguments.map(PathBuf::from).collect();

    // The first round is not counted: it brings the layers' metadata into the page cache.
    let mut last = round(&layers, &out)?;
    let (mut merge, mut cpu, mut flush) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        last = round(&layers, &out)?;
        merge.push(last.merge);
        cpu.push(last.cpu);
        flush.push(last.flush);
    }
    println!(
        "{{\"merge\":{merge:?},\"cpu\":{cpu:?},\"flush\":{flush:?},\"inodes\":{},\"fsmeta_bytes\":{},\
         \"name_bytes\":{},\"fixup\":{}}}",
        last.written.inodes,
        u64::from(last.written.blocks) * BLOCK_SIZE,
        name_bytes(&last.merged),
        last.merged.needs_fixup(),
    );
    Ok(())
}

fn round(layers: &[PathBuf], out: &Path) -> Result<Round, Box<dyn Error>> {
    let (start, cpu_before) = (Instant::now(), on_processor()?);
    let images = layers
        .iter()
        .map(|path| Cached::new(File::open(path)?))
        .collect::<Result<Vec<_>, _>>()?;
    let tags: Vec<_> = layers
        .iter()
        .map(|path| path.file_stem().unwrap_or_default().as_encoded_bytes())
        .collect();
    let layers: Vec<_> = images
        .iter()
        .zip(tags)
        .map(|(image, tag)| Layer { image, tag })
        .collect();
    let merged = Merge::of(&layers, ALIGNMENT)?;
    let (file, written) = merged.write_fsmeta(File::create(out)?, [0; 16])?;
    file.set_len(u64::from(written.padded_blocks) * BLOCK_SIZE)?;
    let (merge, cpu) = (start.elapsed().as_secs_f64(), on_processor()? - cpu_before);
    file.sync_all()?;
    let flush = start.elapsed().as_secs_f64() - merge;
    Ok(Round {
        merge,
        cpu,
        flush,
        merged,
        written,
    })
}

/// Seconds that this thread has had a processor. On a busy machine the clock shows others' work.
fn on_processor() -> Result<f64, Box<dyn Error>> {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: u64 = times.split(' ').next().unwrap_or_default().parse()?;
    Ok(nanoseconds as f64 / 1e9)
}

/// Bytes of all names in all directories.
fn name_bytes(merged: &Merge) -> usize {
    let tree = merged.tree();
    let mut bytes = 0;
    let mut directories = vec![tree.root()];
    while let Some(directory) = directories.pop() {
        for (name, inode) in tree.entries(directory) {
            bytes += name.len();
            if matches!(tree.inode(inode).kind, Kind::Directory(_)) {
                directories.push(inode);
            }
        }
    }
    bytes
}
