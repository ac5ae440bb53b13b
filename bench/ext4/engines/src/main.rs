//! The same operations through three kinds of ext4, timed in the process that asks for them:
//! this project's engine, another one in Rust, and whatever a directory is mounted from.
//!
//!     ext4-engines ours FILE | rust-fs-ext4 FILE | directory DIR     all operations
//!     ext4-engines mkfs FILE BYTES                                   make a filesystem
//!
//! Prints seconds by row as JSON.

mod directory;
mod ours;
mod peer;

use std::time::Instant;

use serde_json::{Map, Value};

/// Anything a filesystem says no with.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Files of the rows on metadata.
const FILES: u32 = 10_000;
/// Bytes of the rows on contents.
const SIZE: usize = 64 << 20;
/// Bytes of a buffer.
const BUFFERS: [usize; 3] = [4 << 10, 32 << 10, 128 << 10];
/// A path of many directories.
const DEEP: &str = "/1/2/3/4/5/6/7/8/file";

/// The operations of every filesystem. All take paths, so that none can skip the lookup.
trait Filesystem {
    /// A file that is being read or written.
    type File;
    fn mkdir(&mut self, path: &str) -> Result<()>;
    /// Makes a file with one byte and closes it.
    fn create(&mut self, path: &str) -> Result<()>;
    /// Opens and closes.
    fn open_close(&mut self, path: &str) -> Result<()>;
    /// Size of a file.
    fn stat(&mut self, path: &str) -> Result<u64>;
    fn rename(&mut self, from: &str, to: &str) -> Result<()>;
    fn unlink(&mut self, path: &str) -> Result<()>;
    /// Makes an empty file and keeps it open.
    fn open_new(&mut self, path: &str) -> Result<Self::File>;
    fn write(&mut self, file: &mut Self::File, offset: u64, bytes: &[u8]) -> Result<()>;
    fn read(&mut self, file: &mut Self::File, offset: u64, bytes: &mut [u8]) -> Result<usize>;
    /// Makes everything durable.
    fn sync(&mut self) -> Result<()>;
}

struct Rows {
    rows: Map<String, Value>,
}

impl Rows {
    fn set(&mut self, name: &str, seconds: f64) {
        self.rows.insert(name.to_owned(), seconds.into());
    }

    /// Times `each` for every file, and then a sync if the row has a durable form.
    fn files<F: Filesystem>(
        &mut self,
        filesystem: &mut F,
        name: &str,
        changes: bool,
        mut each: impl FnMut(&mut F, u32) -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        for number in 0..FILES {
            each(filesystem, number)?;
        }
        self.set(name, start.elapsed().as_secs_f64() / f64::from(FILES));
        if changes {
            filesystem.sync()?;
            let seconds = start.elapsed().as_secs_f64() / f64::from(FILES);
            self.set(&format!("{name}, durable"), seconds);
        }
        Ok(())
    }
}

fn run<F: Filesystem>(mut filesystem: F) -> Result<Map<String, Value>> {
    let mut rows = Rows { rows: Map::new() };
    let fs = &mut filesystem;
    let path = |number: u32| format!("/files/file{number}");
    let moved = |number: u32| format!("/files/moved{number}");
    fs.mkdir("/files")?;
    for end in (1..=8).map(|depth| depth * 2) {
        fs.mkdir(&DEEP[..end])?;
    }
    fs.create(DEEP)?;
    fs.sync()?;

    rows.files(fs, "create", true, |fs, number| fs.create(&path(number)))?;
    rows.files(fs, "open and close", false, |fs, number| {
        fs.open_close(&path(number))
    })?;
    rows.files(fs, "stat", false, |fs, number| {
        assert_eq!(fs.stat(&path(number))?, 1);
        Ok(())
    })?;
    rows.files(fs, "stat, 9 deep", false, |fs, _| {
        assert_eq!(fs.stat(DEEP)?, 1);
        Ok(())
    })?;
    rows.files(fs, "rename", true, |fs, number| {
        fs.rename(&path(number), &moved(number))
    })?;
    rows.files(fs, "delete", true, |fs, number| fs.unlink(&moved(number)))?;

    for size in BUFFERS {
        let kib = size >> 10;
        let name = format!("/contents{kib}");
        let mut buffer: Vec<u8> = (0..size).map(|byte| byte as u8).collect();
        let mut file = fs.open_new(&name)?;
        let start = Instant::now();
        for offset in (0..SIZE).step_by(size) {
            fs.write(&mut file, offset as u64, &buffer)?;
        }
        rows.set(&format!("write, {kib} KiB"), start.elapsed().as_secs_f64());
        fs.sync()?;
        let seconds = start.elapsed().as_secs_f64();
        rows.set(&format!("write, {kib} KiB, durable"), seconds);
        let start = Instant::now();
        for offset in (0..SIZE).step_by(size) {
            assert_eq!(fs.read(&mut file, offset as u64, &mut buffer)?, size);
        }
        rows.set(&format!("read, {kib} KiB"), start.elapsed().as_secs_f64());
        if kib == 4 {
            let mut place = 1_usize;
            let start = Instant::now();
            for _ in 0..FILES {
                place = place
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let block = (place >> 33) % (SIZE / size);
                fs.read(&mut file, (block * size) as u64, &mut buffer)?;
            }
            let seconds = start.elapsed().as_secs_f64() / f64::from(FILES);
            rows.set("random read, 4 KiB", seconds);
        }
        drop(file);
        fs.unlink(&name)?;
    }
    fs.sync()?;
    Ok(rows.rows)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let rows = match words.as_slice() {
        ["ours", file] => run(ours::open(file)?)?,
        ["rust-fs-ext4", file] => run(peer::open(file)?)?,
        ["directory", path] => run(directory::open(path)?)?,
        ["mkfs", file, bytes] => {
            let mut rows = Rows { rows: Map::new() };
            rows.set("mkfs", ours::mkfs(file, bytes.parse()?)?);
            rows.rows
        }
        _ => return Err("see the head of src/main.rs".into()),
    };
    println!("{}", Value::Object(rows));
    Ok(())
}
