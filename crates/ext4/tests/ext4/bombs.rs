//! Checks small filesystems that pretend to hold much: reading them ends, takes little memory, and
//! the error names the inode.

use micabox_ext4::check::check;
use micabox_ext4::device::{Memory, ReadOnly};
use micabox_ext4::format::fields;
use micabox_ext4::format::inode::{RawInode, flags};
use micabox_ext4::{Error, Ext4, Ino, Options, ROOT, Result, SetXattr};

use crate::support::engine::{Image, owner};

/// Returns the result of `work`, which must not use more than `most` bytes of memory at a time.
#[track_caller]
fn within<T>(most: u64, work: impl FnOnce() -> T) -> T {
    let mut result = None;
    let needed = allocation_counter::measure(|| result = Some(work())).bytes_max;
    assert!(needed <= most, "{needed} bytes");
    result.unwrap()
}

const BLOCK: usize = 4096;
const SIZE: usize = 8 << 20;

/// A filesystem with block maps and without checksums, with the start of its free blocks.
struct Bomb {
    image: Vec<u8>,
    free: usize,
}

impl Bomb {
    fn new(paths: &[&str]) -> Self {
        let shape = ["-t", "ext4", "-b", "4096", "-N", "256", "-O"];
        let features = "^dir_index,^resize_inode,^metadata_csum,^64bit,^uninit_bg";
        let image = Image::mke2fs(SIZE as u64, &[&shape[..], &[features]].concat());
        let mut filesystem = image.open();
        for path in paths {
            match path.strip_suffix('/') {
                Some(name) => filesystem.mkdir(ROOT, name.as_bytes(), owner()),
                None => filesystem.create(ROOT, path.as_bytes(), owner()),
            }
            .unwrap();
        }
        drop(filesystem.close().unwrap());
        let image = std::fs::read(image.path()).unwrap();
        Self {
            image,
            free: SIZE / BLOCK - 1,
        }
    }

    fn inode_at(&self, ino: Ino) -> usize {
        let table: u32 = fields::get(&self.image, BLOCK + 8);
        table as usize * BLOCK + (ino as usize - 1) * 256
    }

    fn ino(&self, path: &str) -> Ino {
        self.reader().resolve(path.as_bytes()).unwrap()
    }

    /// Writes an unused block at the end.
    fn block(&mut self, bytes: &[u8]) -> u32 {
        self.free -= 1;
        let at = self.free * BLOCK;
        assert!(self.image[at..at + BLOCK].iter().all(|&byte| byte == 0));
        self.image[at..at + bytes.len()].copy_from_slice(bytes);
        self.free as u32
    }

    /// Writes a block of block numbers.
    fn numbers(&mut self, numbers: impl Fn(usize) -> u32) -> u32 {
        let bytes: Vec<u8> = (0..BLOCK / 4)
            .flat_map(|index| numbers(index).to_le_bytes())
            .collect();
        self.block(&bytes)
    }

    /// Gives an inode a block map in which all pointers lead to one leaf.
    fn map(&mut self, ino: Ino, size: u64, leaf: u32) {
        let doubly = self.numbers(|_| leaf);
        let triply = self.numbers(|_| doubly);
        let at = self.inode_at(ino);
        let mut inode = RawInode::decode(&self.image[at..at + 256]);
        inode.flags &= !flags::EXTENTS;
        inode.set_size(size);
        let first: u32 = fields::get(&self.image, leaf as usize * BLOCK);
        for index in 0..12 {
            fields::put(&mut inode.block, index * 4, first);
        }
        for (index, block) in [leaf, doubly, triply].into_iter().enumerate() {
            fields::put(&mut inode.block, 48 + index * 4, block);
        }
        inode.encode_into(&mut self.image[at..at + 256]);
    }

    fn reader(&self) -> Ext4<ReadOnly<Memory>> {
        let device = ReadOnly(Memory::from(self.image.clone()));
        Ext4::open_read_only(device, small()).unwrap()
    }
}

/// Returns options with negligible caches.
fn small() -> Options {
    Options {
        page_cache: 1 << 20,
        block_cache: 1 << 20,
        ..Options::default()
    }
}

/// Returns a block of entries for `ino` with short names.
fn entries(ino: Ino) -> Vec<u8> {
    let count = BLOCK / 12;
    let mut bytes = Vec::new();
    for index in 0..count {
        let length = if index + 1 < count {
            12
        } else {
            BLOCK - 12 * (count - 1)
        };
        bytes.extend(ino.to_le_bytes());
        bytes.extend((length as u16).to_le_bytes());
        bytes.extend([3, 1]);
        bytes.extend(format!("{index:03x}").as_bytes());
        bytes.push(0);
    }
    bytes.resize(BLOCK, 0);
    bytes
}

#[track_caller]
fn assert_names<T: std::fmt::Debug>(result: Result<T>, ino: Ino) {
    match result {
        Err(error @ Error::Corrupt { .. }) => {
            let said = error.to_string();
            assert!(said.contains(&format!("inode {ino}:")), "{said}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_that_repeats_one_block_is_bounded() {
    let mut bomb = Bomb::new(&["d/", "file"]);
    let (directory, file) = (bomb.ino("/d"), bomb.ino("/file"));
    let block = bomb.block(&entries(file));
    let leaf = bomb.numbers(|_| block);
    // With the maximum size, and with the size of the filesystem.
    for size in [(BLOCK as u64) << 30, SIZE as u64] {
        bomb.map(directory, size, leaf);
        let mut filesystem = bomb.reader();
        let listed = within(4 << 20, || filesystem.read_dir(directory));
        assert_names(listed, directory);
        let mut output = std::io::sink();
        let exported = within(8 << 20, || {
            micabox_overlay::export::export(&mut filesystem, ROOT, &mut output)
        });
        assert!(exported.is_err());
        let device = Memory::from(bomb.image.clone());
        assert!(!within(16 << 20, || check(&device)).is_empty());
    }
}

#[test]
fn directories_that_share_their_blocks_are_bounded() {
    let paths: Vec<String> = (0..200).map(|number| format!("d{number}/")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).chain(["file"]).collect();
    let mut bomb = Bomb::new(&paths);
    let file = bomb.ino("/file");
    let blocks: Vec<u32> = (0..400).map(|_| bomb.block(&entries(file))).collect();
    let leaf = bomb.numbers(|index| blocks[index % 400]);
    let all: Vec<Ino> = (0..200)
        .map(|number| bomb.ino(&format!("/d{number}")))
        .collect();
    for &directory in &all {
        let at = bomb.inode_at(directory);
        let mut inode = RawInode::decode(&bomb.image[at..at + 256]);
        inode.flags &= !flags::EXTENTS;
        inode.set_size(412 * BLOCK as u64);
        inode.block.fill(0);
        fields::put(&mut inode.block, 48, leaf);
        inode.encode_into(&mut bomb.image[at..at + 256]);
    }
    let mut filesystem = bomb.reader();
    assert_eq!(
        filesystem.read_dir(all[0]).unwrap().len(),
        400 * (BLOCK / 12)
    );
    for &other in &all[1..] {
        assert_names(within(1 << 20, || filesystem.read_dir(other)), other);
    }
    // A second read: the block still belongs to the same directory.
    filesystem.read_dir(all[0]).unwrap();
    let device = Memory::from(bomb.image);
    assert!(!within(64 << 20, || check(&device)).is_empty());
}

#[test]
fn a_file_that_repeats_two_blocks_is_bounded() {
    let mut bomb = Bomb::new(&["file"]);
    let file = bomb.ino("/file");
    let blocks = [bomb.block(b"one"), bomb.block(b"other")];
    // No two consecutive blocks, so that each is a segment.
    let leaf = bomb.numbers(|index| blocks[index % 2] * (index as u32 % 3).min(1));
    bomb.map(file, (BLOCK as u64) << 30, leaf);
    let mut filesystem = bomb.reader();
    assert_names(within(4 << 20, || filesystem.segments(file)), file);
    let exported = within(8 << 20, || {
        micabox_overlay::export::export(&mut filesystem, ROOT, std::io::sink())
    });
    assert!(exported.is_err());
    // Conversion to extents would make a list of all blocks.
    let device = Memory::from(bomb.image);
    let mut filesystem = Ext4::open(device, small()).unwrap();
    assert_names(within(8 << 20, || filesystem.truncate(file, 5)), file);
}

#[test]
fn files_that_share_their_blocks_are_not_exported_without_end() {
    let paths: Vec<String> = (0..100).map(|number| format!("f{number}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let mut bomb = Bomb::new(&paths);
    let blocks: Vec<u32> = (0..800).map(|_| bomb.block(b"data")).collect();
    let leaf = bomb.numbers(|index| blocks[index % 800]);
    for path in &paths {
        let at = bomb.inode_at(bomb.ino(&format!("/{path}")));
        let mut inode = RawInode::decode(&bomb.image[at..at + 256]);
        inode.flags &= !flags::EXTENTS;
        inode.set_size(812 * BLOCK as u64);
        inode.block.fill(0);
        fields::put(&mut inode.block, 48, leaf);
        inode.encode_into(&mut bomb.image[at..at + 256]);
    }
    let mut output = Vec::new();
    let exported = micabox_overlay::export::export(&mut bomb.reader(), ROOT, &mut output);
    let said = exported.unwrap_err().to_string();
    assert!(said.contains("inode") && said.contains("add up"), "{said}");
    assert!(output.len() < 3 * SIZE);
}

#[test]
fn a_tree_deeper_than_path_max_is_bounded() {
    let image = Image::new(64 << 20);
    let mut filesystem = image.open();
    let mut at = ROOT;
    for _ in 0..1000 {
        at = filesystem.mkdir(at, &[b'd'; 250], owner()).unwrap();
    }
    let mut output = Vec::new();
    let exported = micabox_overlay::export::export(&mut filesystem, ROOT, &mut output);
    let said = exported.unwrap_err().to_string();
    assert!(said.contains("too deep") && said.len() < 1000, "{said}");
}

#[test]
fn attributes_that_share_their_values_are_bounded() {
    let image = Image::mke2fs(
        64 << 20,
        &[
            "-t",
            "ext4",
            "-b",
            "65536",
            "-N",
            "64",
            "-O",
            "^metadata_csum",
        ],
    );
    let mut filesystem = image.open();
    let file = filesystem.create(ROOT, b"file", owner()).unwrap();
    filesystem
        .set_xattr(file, b"user.a", &[1; 60_000], SetXattr::Any)
        .unwrap();
    drop(filesystem.close().unwrap());
    let mut bytes = std::fs::read(image.path()).unwrap();
    let header = (0..bytes.len())
        .step_by(65536)
        .find(|&at| bytes[at..at + 4] == [0, 0, 2, 0xEA])
        .unwrap();
    // As many entries as fit, all with the same value.
    let entry: [u8; 20] = bytes[header + 32..header + 52].try_into().unwrap();
    for index in 0..250 {
        let at = header + 32 + index * 20;
        bytes[at..at + 20].copy_from_slice(&entry);
    }
    let mut filesystem = Ext4::open_read_only(ReadOnly(Memory::from(bytes)), small()).unwrap();
    let names = within(1 << 20, || filesystem.xattr_names(file));
    assert!(matches!(names, Err(Error::Corrupt { .. })), "{names:?}");
}

/// A log that consists of one block, which revokes a thousand others, repeatedly.
#[test]
fn a_journal_in_one_block_is_bounded() {
    let mut bomb = Bomb::new(&["file"]);
    let magic = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
    let log = (0..SIZE)
        .step_by(BLOCK)
        .find(|&at| bomb.image[at..].starts_with(&magic));
    let log = log.unwrap();
    let sequence: u32 = fields::get_be(&bomb.image, log + 24);
    let mut revoke = Vec::new();
    for word in [0xC03B_3998, 5, sequence, BLOCK as u32] {
        revoke.extend(u32::to_be_bytes(word));
    }
    revoke.resize(BLOCK, 1);
    let block = bomb.block(&revoke);
    let first = (log / BLOCK) as u32;
    let leaf = bomb.numbers(|_| block);
    bomb.map(8, (BLOCK as u64) << 30, leaf);
    let at = bomb.inode_at(8);
    fields::put(&mut bomb.image[at..], 40, first);
    // The log's superblock: as long as the inode, started at its first block.
    fields::put_be(&mut bomb.image, log + 16, 1u32 << 30);
    fields::put_be(&mut bomb.image, log + 28, 1u32);
    bomb.image[1024 + 0x60] |= 4;
    let device = ReadOnly(Memory::from(bomb.image.clone()));
    let opened = within(8 << 20, || Ext4::open_read_only(device, small()).map(drop));
    assert!(matches!(opened, Err(Error::Corrupt { .. })), "{opened:?}");
}
