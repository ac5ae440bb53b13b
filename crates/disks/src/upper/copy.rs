//! Copies disks: with shared extents where the host's filesystem can, otherwise with all holes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// Copies a file to a new file at `to`, durably. No process may change it meanwhile.
pub fn copy(source: &File, to: &Path) -> io::Result<()> {
    let target = create(to)?;
    let copied = fill(source, &target, &mut || ());
    let result = copied.and_then(|()| target.sync_all());
    if result.is_err() {
        let _ = fs::remove_file(to);
    }
    result
}

/// Makes a new file for a copy.
pub fn create(path: &Path) -> io::Result<File> {
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    options.open(path)
}

/// Makes `target` a copy of `source`. No process may change `source` meanwhile. Calls `progress`
/// regularly.
pub fn fill(source: &File, target: &File, progress: &mut dyn FnMut()) -> io::Result<()> {
    match rustix::fs::ioctl_ficlone(target, source) {
        Ok(()) => Ok(()),
        // Another filesystem, or one without shared extents.
        Err(_) => copy_data(source, target, progress),
    }
}

/// Returns offset and length of each run of data in a file, holes left out, ascending.
pub fn data_runs(file: &File) -> io::Result<Vec<(u64, u64)>> {
    let size = file.metadata()?.len();
    let mut runs = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start))?.max(start + 1);
        runs.push((start, at.min(size).saturating_sub(start)));
    }
    Ok(runs)
}

fn copy_data(source: &File, target: &File, progress: &mut dyn FnMut()) -> io::Result<()> {
    target.set_len(0)?;
    target.set_len(source.metadata()?.len())?;
    let mut buffer = vec![0; PIECE];
    for (start, length) in data_runs(source)? {
        let (mut at, end) = (start, start + length);
        while at < end {
            let count = buffer.len().min((end - at) as usize);
            let piece = buffer.get_mut(..count).unwrap_or_default();
            source.read_exact_at(piece, at)?;
            // Pieces of zeros become holes as well.
            if piece.iter().any(|byte| *byte != 0) {
                target.write_all_at(piece, at)?;
            }
            at += count as u64;
            progress();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn holes_in_a_copied_disk_stay_holes() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        let file = File::create(&from).unwrap();
        file.set_len(1 << 30).unwrap();
        file.write_all_at(b"begin", 0).unwrap();
        file.write_all_at(b"middle", (300 << 20) + 7).unwrap();
        file.write_all_at(b"end", (1 << 30) - 3).unwrap();
        let from = File::open(from).unwrap();
        copy(&from, &to).unwrap();
        let copied = File::open(&to).unwrap();
        assert_eq!(copied.metadata().unwrap().len(), 1 << 30);
        assert!(copied.metadata().unwrap().blocks() < 16 << 11);
        let mut text = [0; 6];
        copied.read_exact_at(&mut text, (300 << 20) + 7).unwrap();
        assert_eq!(&text, b"middle");
        copied.read_exact_at(&mut text[..3], (1 << 30) - 3).unwrap();
        assert_eq!(&text[..3], b"end");
        // An existing file is never overwritten.
        copy(&from, &to).unwrap_err();
    }
}
