//! What a page costs that is read through a served file: by read(2), one page at a time in a random order, and 1 MiB at a
//! time from end to end; beside a file in the working directory that is not cached. As root.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use micabox_erofs::ReadAt;
use micabox_fuse::Channel;
use micabox_jail::container::tree::{Readers, mount_fuse};
use micabox_layerfs::{Files, Source};
use rustix::fs::{Advice, Mode, OFlags, fadvise, openat};

const PAGE: usize = 4096;
const PAGES: usize = 16 << 10;

/// Bytes that are here: those of memory.
struct Here(Vec<u8>);

impl ReadAt for Here {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.0.get(offset as usize..).unwrap_or_default();
        let bytes = bytes.get(..buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}

impl Source for Here {}

fn main() -> io::Result<()> {
    let bytes: Vec<u8> = (0..PAGES * PAGE).map(|at| (at >> 12) as u8).collect();
    let mut plain = tempfile()?;
    plain.write_all(&bytes)?;
    plain.sync_all()?;

    let (_end, line) = UnixStream::pair()?;
    let files = Files::new(
        vec![Here(bytes)],
        move || _ = (&line).write(&[1]),
        |_, _| {},
    )?;
    let tree = mount_fuse(4, Readers::All)?;
    let channels: Vec<_> = tree.channels.into_iter().map(Channel::new).collect();
    std::thread::spawn(move || micabox_fuse::serve(&channels, &files));
    let served = open(&tree.mount)?;

    for (name, file) in [("served", &served), ("plain", &plain)] {
        drop_cache(file)?;
        fadvise(file, 0, None, Advice::Random)?;
        let pages = random(file)?;
        drop_cache(file)?;
        fadvise(file, 0, None, Advice::Normal)?;
        let whole = sequential(file)?;
        let speed = (PAGES * PAGE) as f64 / whole.as_secs_f64() / 1e6;
        let page = pages.as_secs_f64() * 1e6 / PAGES as f64;
        println!("{name}: {page:.1} us a page in a random order, {speed:.0} MB/s from end to end");
    }
    Ok(())
}

fn tempfile() -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    Ok(rustix::fs::open(".", flags, Mode::from_raw_mode(0o600))?.into())
}

fn open(mount: &OwnedFd) -> io::Result<File> {
    Ok(openat(mount, "0", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn drop_cache(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

fn random(file: &File) -> io::Result<Duration> {
    let mut page = [0; PAGE];
    let begun = Instant::now();
    for turn in 0..PAGES {
        // Each page once: the factor is odd.
        let at = turn * 7919 % PAGES;
        FileExt::read_exact_at(file, &mut page, (at * PAGE) as u64)?;
        assert_eq!(page, [at as u8; PAGE]);
    }
    Ok(begun.elapsed())
}

fn sequential(mut file: &File) -> io::Result<Duration> {
    let mut piece = vec![0; 1 << 20];
    let begun = Instant::now();
    io::Seek::rewind(&mut file)?;
    while file.read(&mut piece)? > 0 {}
    Ok(begun.elapsed())
}
