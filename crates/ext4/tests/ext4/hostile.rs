//! Checks malicious images: whatever they contain, operations end with a result or an error.

use micabox_ext4::device::Memory;
use micabox_ext4::{BlockDevice, Ext4, Fallocate, FileKind, Ino, Options, ROOT, Rename, SetXattr};

use crate::support::engine::{Image, owner};
use crate::support::model::{self, Model, Op, Random};
use micabox_testing::e2fsprogs;

/// More entries than any image here has; a directory in a cycle has more.
const PATIENCE: usize = 3000;

/// Reads everything that can be read.
fn look_around<D: BlockDevice>(filesystem: &mut Ext4<D>) -> Vec<(Ino, Ino, Box<[u8]>)> {
    let mut found = Vec::new();
    let mut rest = vec![ROOT];
    let mut buf = vec![0; 100_000];
    while let Some(directory) = rest.pop() {
        for entry in filesystem.read_dir(directory).unwrap_or_default() {
            if found.len() > PATIENCE {
                return found;
            }
            let _ = filesystem.lookup(directory, &entry.name);
            let Ok(stat) = filesystem.stat(entry.ino) else {
                continue;
            };
            let names = filesystem.xattr_names(entry.ino).unwrap_or_default();
            for name in names.iter().take(50) {
                let _ = filesystem.xattr(entry.ino, name);
            }
            match stat.kind() {
                Some(FileKind::Directory) => rest.push(entry.ino),
                Some(FileKind::Symlink) => drop(filesystem.read_link(entry.ino)),
                _ => {
                    for offset in [0, stat.size / 2, stat.size.saturating_sub(5000)] {
                        let _ = filesystem.read(entry.ino, offset, &mut buf);
                    }
                    if stat.size < 1 << 30 {
                        let _ = filesystem.segments(entry.ino);
                    }
                }
            }
            found.push((directory, entry.ino, entry.name));
        }
    }
    found
}

/// Changes everything that can be changed.
fn stir<D: BlockDevice>(filesystem: &mut Ext4<D>) {
    let found = look_around(filesystem);
    for (number, (directory, ino, name)) in found.iter().enumerate() {
        let new = format!("new {number}");
        let _ = match number % 9 {
            0 => filesystem.unlink(*directory, name),
            1 => filesystem
                .create(*directory, new.as_bytes(), owner())
                .map(|_| ()),
            2 => filesystem.write(*ino, 30_000, &[1; 9000]).map(|_| ()),
            3 => filesystem.truncate(*ino, 5000),
            4 => filesystem.rename(*directory, name, ROOT, new.as_bytes(), Rename::Replace),
            5 => filesystem.set_xattr(*ino, b"user.new", &[2; 300], SetXattr::Any),
            6 => filesystem.fallocate(*ino, Fallocate::PunchHole, 1000, 50_000),
            7 => filesystem.mkdir(*ino, b"directory", owner()).map(|_| ()),
            _ => filesystem.rmdir(*directory, name),
        };
    }
    let _ = filesystem.sync();
}

fn examine(bytes: &[u8]) {
    let options = || Options {
        page_cache: 4 << 20,
        ..Options::default()
    };
    if let Ok(mut filesystem) = Ext4::open_read_only(Memory::from(bytes.to_vec()), options()) {
        look_around(&mut filesystem);
    }
    if let Ok(mut filesystem) = Ext4::open(Memory::from(bytes.to_vec()), options()) {
        stir(&mut filesystem);
        let _ = filesystem.close();
    }
}

/// Returns an image with some of everything, and without checksums, so that damage is not rejected.
fn victim(seed: u64, shape: &[&str], dirty: bool) -> Vec<u8> {
    let image = Image::mke2fs(8 << 20, shape);
    let mut filesystem = image.open();
    let mut model = Model::new();
    let mut random = Random(seed);
    for _ in 0..400 {
        let op = Op::random(&mut random);
        let _ = model.apply(&op);
        let _ = model::apply(&mut filesystem, &op);
    }
    for number in 0..300 {
        let name = format!("a name that helps to fill directories {number}");
        let _ = filesystem.create(ROOT, name.as_bytes(), owner());
    }
    filesystem.sync().unwrap();
    if dirty {
        drop(filesystem.abandon())
    } else {
        drop(filesystem.close().unwrap())
    }
    std::fs::read(image.path()).unwrap()
}

#[test]
fn altered_bytes_of_images_are_survived() {
    let shapes: [(&[&str], bool); 4] = [
        (
            &[
                "-t",
                "ext4",
                "-O",
                "^metadata_csum",
                "-b",
                "1024",
                "-N",
                "1024",
            ],
            false,
        ),
        (
            &[
                "-t",
                "ext4",
                "-O",
                "^metadata_csum,^64bit",
                "-b",
                "4096",
                "-N",
                "1024",
            ],
            true,
        ),
        (
            &[
                "-t",
                "ext4",
                "-O",
                "^metadata_csum,inline_data,ea_inode",
                "-b",
                "1024",
                "-N",
                "1024",
            ],
            false,
        ),
        (&["-t", "ext4", "-b", "1024", "-N", "1024"], true),
    ];
    for (seed, (shape, dirty)) in shapes.into_iter().enumerate() {
        let original = victim(seed as u64, shape, dirty);
        let mut random = Random(seed as u64 + 50);
        // Only nonzero places: damage elsewhere is never read.
        let used: Vec<usize> = original
            .chunks(64)
            .enumerate()
            .filter(|(_, chunk)| chunk.iter().any(|&byte| byte != 0))
            .map(|(number, _)| number * 64)
            .filter(|&at| at >= 1024)
            .collect();
        for _ in 0..150 {
            let mut bytes = original.clone();
            for _ in 0..1 + random.below(12) {
                // Early blocks are metadata: they get half of the damage.
                let from = if random.below(2) == 0 {
                    used.len() as u64 / 8
                } else {
                    used.len() as u64
                };
                let at = used[random.below(from) as usize] + random.below(64) as usize;
                bytes[at] = match random.below(4) {
                    0 => 0,
                    1 => 0xFF,
                    2 => bytes[at] ^ (1 << random.below(8)),
                    _ => random.next() as u8,
                };
            }
            examine(&bytes);
        }
    }
}

#[test]
fn broken_images_of_e2fsprogs_are_survived() {
    for (name, path) in e2fsprogs::broken_images() {
        println!("{name}");
        let bytes = std::fs::read(path).unwrap();
        if bytes.len() <= 64 << 20 {
            examine(&bytes);
        }
    }
}
