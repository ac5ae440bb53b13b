//! How long the engine takes: `measure FILE` with FILE on tmpfs, made anew. Prints medians of
//! rounds in microseconds an operation and in GB/s.

use std::fs::OpenOptions;
use std::hint::black_box;
use std::time::Instant;

use micabox_ext4::make::{self, Journal};
use micabox_ext4::{Ext4, Options, Owner};

const FILES: u32 = 10_000;
const ROUNDS: usize = 9;
const LARGE: usize = 64 << 20;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let path = std::env::args().nth(1).expect("usage: measure FILE");
    let size = 2 << 30;
    let mut rows: Vec<(String, Vec<f64>, &str)> = Vec::new();
    let mut record = |name: &str, value: f64, unit: &'static str| match rows
        .iter_mut()
        .find(|(known, ..)| known == name)
    {
        Some((_, values, _)) => values.push(value),
        None => rows.push((name.to_owned(), vec![value], unit)),
    };
    for _ in 0..ROUNDS {
        let _ = std::fs::remove_file(&path);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("the file can be made");
        file.set_len(size).expect("the file can grow");
        let mut device = file;
        let options = make::Options {
            uuid: [7; 16],
            label: [0; 16],
            time: 1,
            inodes: None,
            journal: Journal::Default,
            reserved: 0,
        };
        make::make(&mut device, size, &options).expect("the filesystem can be made");
        let mut fs = Ext4::open(device, Options::default()).expect("it opens");
        let owner = Owner::root(0o644);
        let directory = fs.mkdir(2, b"files", Owner::root(0o755)).unwrap();
        let deep = (0..8).fold(directory, |at, _| fs.mkdir(at, b"deeper", owner).unwrap());
        fs.create(deep, b"file", owner).unwrap();
        let names: Vec<Vec<u8>> = (0..FILES)
            .map(|number| format!("/files/file{number:05}").into_bytes())
            .collect();
        let each = 1e6 / f64::from(FILES);

        let start = Instant::now();
        for name in &names {
            let (parent, name) = fs.resolve_parent(name).unwrap();
            let ino = fs.create(parent, name, owner).unwrap();
            fs.write(ino, 0, b"x").unwrap();
        }
        record("create", start.elapsed().as_secs_f64() * each, "us");
        fs.sync().unwrap();
        record(
            "create, durable",
            start.elapsed().as_secs_f64() * each,
            "us",
        );
        let start = Instant::now();
        for name in &names {
            let ino = fs.resolve(name).unwrap();
            fs.hold(ino).unwrap();
            fs.release(ino).unwrap();
        }
        record("open+close", start.elapsed().as_secs_f64() * each, "us");
        let start = Instant::now();
        for name in &names {
            let ino = fs.resolve(name).unwrap();
            black_box(fs.stat(ino).unwrap());
        }
        record("stat", start.elapsed().as_secs_f64() * each, "us");
        let start = Instant::now();
        let path = b"/files/deeper/deeper/deeper/deeper/deeper/deeper/deeper/deeper/file";
        for _ in &names {
            let ino = fs.resolve(path).unwrap();
            black_box(fs.stat(ino).unwrap());
        }
        record("stat, deep", start.elapsed().as_secs_f64() * each, "us");
        let start = Instant::now();
        for name in &names {
            let (parent, name) = fs.resolve_parent(name).unwrap();
            fs.unlink(parent, name).unwrap();
        }
        record("unlink", start.elapsed().as_secs_f64() * each, "us");
        fs.sync().unwrap();
        record(
            "unlink, durable",
            start.elapsed().as_secs_f64() * each,
            "us",
        );
        for kib in [4, 32, 128] {
            let mut buf = vec![0x5a; kib << 10];
            let gb = LARGE as f64 / 1e9;
            let name = format!("large{kib}");
            let ino = fs.create(2, name.as_bytes(), owner).unwrap();
            let start = Instant::now();
            for at in (0..LARGE).step_by(buf.len()) {
                fs.write(ino, at as u64, &buf).unwrap();
            }
            record(
                &format!("write {kib} KiB"),
                gb / start.elapsed().as_secs_f64(),
                "GB/s",
            );
            fs.sync().unwrap();
            record(
                &format!("write {kib} KiB, durable"),
                gb / start.elapsed().as_secs_f64(),
                "GB/s",
            );
            for _ in 0..2 {
                let start = Instant::now();
                for at in (0..LARGE).step_by(buf.len()) {
                    fs.read(ino, at as u64, &mut buf).unwrap();
                }
                record(
                    &format!("read {kib} KiB, cached"),
                    gb / start.elapsed().as_secs_f64(),
                    "GB/s",
                );
            }
        }
        let device = fs.close().unwrap();
        let mut fs = Ext4::open(device, Options::default()).expect("it opens again");
        for kib in [4, 128] {
            let mut buf = vec![0; kib << 10];
            let gb = LARGE as f64 / 1e9;
            let ino = fs.resolve(format!("/large{kib}").as_bytes()).unwrap();
            let start = Instant::now();
            for at in (0..LARGE).step_by(buf.len()) {
                fs.read(ino, at as u64, &mut buf).unwrap();
            }
            record(
                &format!("read {kib} KiB, first time"),
                gb / start.elapsed().as_secs_f64(),
                "GB/s",
            );
        }
    }
    let _ = std::fs::remove_file(&path);
    for (name, values, unit) in rows {
        println!("{name:26} {:9.2} {unit}", median(values));
    }
}
