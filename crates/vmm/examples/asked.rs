//! What bytes cost that a machine's monitor asks for, whose server has them in memory: of a region that userfaultfd fills,
//! and of a disk. As who may use userfaultfd. `crates/layerfs/examples/faults.rs` is the same by FUSE.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use micabox_erofs::ReadAt;
use micabox_layerfs::ask::{self, Asker};
use micabox_layerfs::pieces::{MOST, PIECE, count};
use micabox_layerfs::{Files, Parts, Source};
use micabox_vmm::kvm::parts::alone::{Disk, Mapped};
use micabox_vmm::{MachineFile, Part, PartServers};

const PAGE: usize = 4096;
const PAGES: usize = 64 << 10;
const SIZE: usize = PAGES * PAGE;

/// Pages that are mapped together at most: 2 MiB.
const WINDOW: usize = 512;

/// How often the faults of what is here are measured, of which the median counts.
const ROUNDS: usize = 9;

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

/// Serves the bytes in this process, in threads.
struct Servers(Arc<Parts<Here>>);

impl std::fmt::Debug for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Servers")
    }
}

impl Servers {
    fn new(bytes: &[u8]) -> io::Result<Arc<Self>> {
        let files = Files::new(vec![Here(bytes.to_vec())], || {}, |_, _| {})?;
        let parts = Parts::new(Arc::new(files), &std::env::current_dir()?);
        Ok(Arc::new(Self(Arc::new(parts))))
    }
}

impl PartServers for Servers {
    fn connect(&self, _: &str) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        let parts = Arc::clone(&self.0);
        std::thread::spawn(move || ask::serve(&parts, ours));
        Ok(theirs)
    }
}

fn main() -> io::Result<()> {
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at >> 12) as u8 | 1).collect();
    // Each page once: the factor is odd.
    let random: Vec<usize> = (0..PAGES).map(|turn| turn * 7919 % PAGES).collect();

    let servers = Servers::new(&bytes)?;
    let file = file(&servers)?;
    let memory = Mapped::new(Arc::clone(&servers) as _, &file)?;
    let taken = touch(&memory, &random);
    println!("missing: {:.1} us a page in a random order", each(taken));
    // All of it is here now, and mapped as soon as a machine begins.
    let memory = Mapped::new(Arc::clone(&servers) as _, &file)?;
    let taken = touch(&memory, &random);
    println!("mapped: {:.1} us a page in a random order", each(taken));

    let rounds: Vec<_> = (0..ROUNDS)
        .map(|_| here(&bytes, &random))
        .collect::<io::Result<_>>()?;
    let median = |of: fn(&[f64; 3]) -> f64| {
        let mut all: Vec<_> = rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(ROUNDS / 2).copied().unwrap_or_default()
    };
    println!(
        "here, a part at a time: {:.1} us a fault, which maps {WINDOW} pages",
        median(|round| round[0])
    );
    println!(
        "here: {:.1} us a fault, which maps all that is near, and {:.1} us a page then",
        median(|round| round[1]),
        median(|round| round[2])
    );

    let servers = Servers::new(&bytes)?;
    let file = self::file(&servers)?;
    let disk = Disk::new(Arc::clone(&servers) as _, &file)?;
    for name in ["disk, missing", "disk, here"] {
        let begun = Instant::now();
        for page in &random {
            let at = (page * PAGE) as u64;
            assert_eq!(disk.read(at..at + PAGE as u64)?, [*page as u8 | 1; PAGE]);
        }
        println!(
            "{name}: {:.1} us a page in a random order",
            each(begun.elapsed())
        );
    }
    Ok(())
}

/// Measures in microseconds the first fault in each 2 MiB that come behind the machine's back, part by part and all at once;
/// and all pages then.
fn here(bytes: &[u8], random: &[usize]) -> io::Result<[f64; 3]> {
    let first: Vec<usize> = (0..PAGES).step_by(WINDOW).collect();
    let each_of = |taken: Duration| taken.as_secs_f64() * 1e6 / first.len() as f64;

    let (memory, other) = another(bytes)?;
    let mut parts = Duration::ZERO;
    for (page, number) in first.iter().zip(0..) {
        other.bring(0, number * MOST..(number + 1) * MOST)?;
        parts += touch(&memory, std::slice::from_ref(page));
    }
    let (memory, other) = another(bytes)?;
    other.bring(0, 0..count(SIZE as u64))?;
    let all = touch(&memory, &first);
    Ok([each_of(parts), each_of(all), each(touch(&memory, random))])
}

/// Returns memory of which nothing is here, and what brings it without the machine.
fn another(bytes: &[u8]) -> io::Result<(Mapped, Asker)> {
    let servers = Servers::new(bytes)?;
    let memory = Mapped::new(Arc::clone(&servers) as _, &file(&servers)?)?;
    let other = Asker::new(servers.connect("")?);
    other.open(0)?;
    Ok((memory, other))
}

/// Opens the file as it is given to a machine.
fn file(servers: &Arc<Servers>) -> io::Result<MachineFile> {
    let opened = Asker::new(servers.connect("")?).open(0)?;
    let file = MachineFile::new(opened.file.try_clone()?, "served").map_err(io::Error::other)?;
    assert!(opened.size.is_multiple_of(PIECE));
    Ok(file.in_part(Some(Part {
        server: "it".to_owned(),
        number: 0,
        is_readable: false,
    })))
}

fn touch(memory: &Mapped, pages: &[usize]) -> Duration {
    let mut byte = [0];
    let begun = Instant::now();
    for page in pages {
        memory.read(page * PAGE, &mut byte);
        assert_eq!(byte, [*page as u8 | 1]);
    }
    begun.elapsed()
}

fn each(taken: Duration) -> f64 {
    taken.as_secs_f64() * 1e6 / PAGES as f64
}
