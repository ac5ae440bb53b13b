//! Locates an image's structures, and seals each again after a change: only as far as the format
//! alone determines it.

use micabox_ext4::format::checksum::inode_seed;
use micabox_ext4::format::features::{compat, incompat};
use micabox_ext4::format::group::{GroupDescriptor, bitmap_checksum};
use micabox_ext4::format::inode::{self, RawInode, flags};
use micabox_ext4::format::superblock::Superblock;
use micabox_ext4::format::{directory, extent, fields, journal, orphan, xattr};

/// The type of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    Superblock,
    Group,
    Inode,
    ReservedInode,
    Extents,
    BlockMap,
    Directory,
    Index,
    InodeXattrs,
    XattrBlock,
    Journal,
    BlockBitmap,
    InodeBitmap,
    OrphanFile,
}

#[derive(Debug, Clone, Copy)]
enum Seal {
    Superblock,
    Group(u32),
    Inode(u32, usize),
    Extents(u32),
    Directory(u32),
    Index(u32, usize),
    Xattrs(u64),
    Journal,
    BlockBitmap(u32),
    InodeBitmap(u32),
    OrphanFile(u32, u64),
    Nothing,
}

/// A structure.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub what: What,
    /// Its start, and the number of bytes with a meaning.
    pub at: usize,
    pub length: usize,
    seal: Seal,
}

/// The structures of an image with 1 to 4 KiB blocks and contiguous descriptors.
pub struct Places {
    superblock: Superblock,
    block_size: usize,
    descriptors: usize,
    pub all: Vec<Place>,
}

impl Places {
    pub fn of(image: &[u8]) -> Self {
        let superblock = Superblock::decode(&image[1024..]);
        let block_size = superblock.block_size().unwrap() as usize;
        assert!(!superblock.has_incompat(incompat::META_BG));
        let mut places = Self {
            descriptors: (1024 / block_size + 1) * block_size,
            superblock,
            block_size,
            all: Vec::new(),
        };
        places.add(What::Superblock, 1024, 0x290, Seal::Superblock);
        for number in 0..places.superblock.groups() as u32 {
            places.group(image, number);
        }
        places
    }

    fn add(&mut self, what: What, at: usize, length: usize, seal: Seal) {
        self.all.push(Place {
            what,
            at,
            length,
            seal,
        });
    }

    fn descriptor_size(&self) -> usize {
        self.superblock.descriptor_bytes().into()
    }

    fn descriptor_at(&self, group: u32) -> usize {
        self.descriptors + group as usize * self.descriptor_size()
    }

    fn group(&mut self, image: &[u8], number: u32) {
        let at = self.descriptor_at(number);
        self.add(What::Group, at, self.descriptor_size(), Seal::Group(number));
        let group = GroupDescriptor::decode(&image[at..at + self.descriptor_size()]);
        let bits = self.superblock.clusters_per_group as usize / 8;
        let block_bitmap = group.block_bitmap() as usize * self.block_size;
        self.add(
            What::BlockBitmap,
            block_bitmap,
            bits,
            Seal::BlockBitmap(number),
        );
        let per_group = self.superblock.inodes_per_group;
        let bitmap = group.inode_bitmap() as usize * self.block_size;
        let bits = per_group as usize / 8;
        self.add(What::InodeBitmap, bitmap, bits, Seal::InodeBitmap(number));
        let size = usize::from(self.superblock.inode_bytes());
        let first = number * per_group + 1;
        for ino in first..first + per_group {
            let at = group.inode_table() as usize * self.block_size + (ino - first) as usize * size;
            self.inode(image, ino, at, size);
        }
    }

    fn inode(&mut self, image: &[u8], ino: u32, at: usize, size: usize) {
        let bytes = &image[at..at + size];
        let seal = Seal::Inode(ino, size);
        if ino < self.superblock.first_file_inode() && ino != 2 {
            self.add(What::ReservedInode, at, size.min(160), seal);
        } else if bytes.iter().all(|&byte| byte == 0) {
            return;
        } else {
            self.add(What::Inode, at, size.min(160), seal);
        }
        let raw = RawInode::decode(bytes);
        let body = 128 + usize::from(raw.extra_isize);
        if size > 128 && fields::get::<u32>(bytes, body) == xattr::MAGIC {
            self.add(What::InodeXattrs, at + body, size - body, seal);
        }
        if raw.file_acl() != 0 {
            let place = raw.file_acl() as usize * self.block_size;
            self.add(
                What::XattrBlock,
                place,
                self.block_size,
                Seal::Xattrs(raw.file_acl()),
            );
        }
        let inline = raw.flags & flags::INLINE_DATA != 0;
        let has_blocks = matches!(raw.mode & inode::S_IFMT, inode::S_IFREG | inode::S_IFDIR);
        if raw.links_count == 0 || inline || !has_blocks {
            return;
        }
        let seed = inode_seed(self.superblock.seed(), ino, raw.generation);
        let mut blocks = Vec::new();
        if raw.flags & flags::EXTENTS != 0 {
            self.extents(image, seed, &raw.block, &mut blocks);
        } else {
            self.pointers(image, &raw.block[..48], 0, &mut blocks);
            for level in 1..=3 {
                let at = 44 + 4 * level;
                self.pointers(image, &raw.block[at..at + 4], level, &mut blocks);
            }
        }
        for (logical, block) in blocks.into_iter().enumerate() {
            self.data(image, ino, &raw, seed, logical, block);
        }
    }

    fn extents(&mut self, image: &[u8], seed: u32, node: &[u8], blocks: &mut Vec<u64>) {
        let header = extent::Header::decode(node);
        for index in 0..usize::from(header.entries) {
            let entry = &node[12 + index * 12..24 + index * 12];
            if header.depth == 0 {
                let extent = extent::Extent::decode(entry);
                blocks.extend(extent.physical..extent.physical + u64::from(extent.length));
            } else {
                let child = extent::Index::decode(entry).child;
                let at = child as usize * self.block_size;
                self.add(What::Extents, at, 12 * 12, Seal::Extents(seed));
                self.extents(image, seed, &image[at..at + self.block_size], blocks);
            }
        }
    }

    fn pointers(&mut self, image: &[u8], numbers: &[u8], level: usize, blocks: &mut Vec<u64>) {
        for number in numbers
            .chunks_exact(4)
            .map(|bytes| fields::get::<u32>(bytes, 0))
        {
            if number == 0 {
                continue;
            }
            if level == 0 {
                blocks.push(number.into());
                continue;
            }
            let at = number as usize * self.block_size;
            self.add(What::BlockMap, at, 64, Seal::Nothing);
            self.pointers(image, &image[at..at + self.block_size], level - 1, blocks);
        }
    }

    fn data(
        &mut self,
        image: &[u8],
        ino: u32,
        raw: &RawInode,
        seed: u32,
        logical: usize,
        block: u64,
    ) {
        let at = block as usize * self.block_size;
        let bytes = &image[at..at + self.block_size];
        let superblock = &self.superblock;
        if superblock.has_compat(compat::HAS_JOURNAL) && ino == superblock.journal_inode {
            if logical == 0 {
                self.add(What::Journal, at, 0x100, Seal::Journal);
            }
        } else if superblock.has_compat(compat::ORPHAN_FILE) && ino == superblock.orphan_file_inode
        {
            self.add(
                What::OrphanFile,
                at,
                self.block_size,
                Seal::OrphanFile(seed, block),
            );
        } else if raw.mode & inode::S_IFMT == inode::S_IFDIR {
            let indexed = raw.flags & flags::INDEX != 0;
            let node = fields::get::<u32>(bytes, 0) == 0
                && usize::from(fields::get::<u16>(bytes, 4)) == self.block_size;
            if indexed && logical == 0 {
                self.add(
                    What::Index,
                    at,
                    80,
                    Seal::Index(seed, directory::ROOT_ENTRIES_OFFSET),
                );
            } else if indexed && node {
                self.add(
                    What::Index,
                    at,
                    80,
                    Seal::Index(seed, directory::NODE_ENTRIES_OFFSET),
                );
            } else {
                let used = bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0);
                let length = (used + 1).min(self.block_size - 12).max(24);
                self.add(What::Directory, at, length, Seal::Directory(seed));
            }
        }
    }

    /// Corrects the checksums of a structure after a change.
    pub fn seal(&self, image: &mut [u8], place: &Place) {
        let checksums = self.superblock.has_checksums();
        let seed = self.superblock.seed();
        let block = place.at..place.at + self.block_size;
        match place.seal {
            Seal::Superblock => {
                let bytes: &mut [u8; 1024] = (&mut image[1024..2048]).try_into().unwrap();
                if checksums {
                    let checksum = Superblock::checksum_of(bytes);
                    fields::put(bytes, 0x3FC, checksum);
                }
            }
            Seal::Group(number) => self.seal_group(image, number),
            Seal::Inode(ino, size) if checksums => {
                // Attributes lie somewhere in the inode.
                let table = self.superblock.inode_bytes() as usize;
                let at = self.inode_at(image, ino);
                assert_eq!(table, size);
                inode::seal(seed, ino, &mut image[at..at + size]);
            }
            Seal::Extents(seed) if checksums => {
                // The position of the checksum according to the mutated header.
                let node = &mut image[block];
                if extent::checksum_offset(node) + 4 <= node.len() {
                    extent::seal(seed, node);
                }
            }
            Seal::Directory(seed) if checksums => directory::seal(seed, &mut image[block]),
            Seal::Index(seed, entries) if checksums => {
                directory::seal_index(seed, &mut image[block], entries);
            }
            Seal::Xattrs(number) if checksums => xattr::seal(seed, number, &mut image[block]),
            Seal::Journal => {
                let bytes = &mut image[place.at..place.at + 1024];
                let superblock = journal::Superblock::decode(bytes);
                superblock.seal_into(bytes);
            }
            Seal::BlockBitmap(number) | Seal::InodeBitmap(number) if checksums => {
                let bitmap = &image[place.at..place.at + place.length];
                let checksum = bitmap_checksum(&self.superblock, bitmap);
                let at = self.descriptor_at(number);
                let descriptor = &mut image[at..at + self.descriptor_size()];
                let mut group = GroupDescriptor::decode(descriptor);
                match place.seal {
                    Seal::BlockBitmap(_) => group.set_block_bitmap_checksum(checksum),
                    _ => group.set_inode_bitmap_checksum(checksum),
                }
                group.encode_into(descriptor);
                self.seal_group(image, number);
            }
            Seal::OrphanFile(seed, number) if checksums => {
                let bytes = &mut image[block];
                let checksum = orphan::checksum_of(seed, number, bytes);
                let end = bytes.len() - 4;
                fields::put(bytes, end, checksum);
            }
            _ => {}
        }
    }

    fn inode_at(&self, image: &[u8], ino: u32) -> usize {
        let group = (ino - 1) / self.superblock.inodes_per_group;
        let index = (ino - 1) % self.superblock.inodes_per_group;
        let at = self.descriptor_at(group);
        let group = GroupDescriptor::decode(&image[at..at + self.descriptor_size()]);
        let size = usize::from(self.superblock.inode_bytes());
        group.inode_table() as usize * self.block_size + index as usize * size
    }

    fn seal_group(&self, image: &mut [u8], number: u32) {
        if self.superblock.has_group_checksums() {
            let at = self.descriptor_at(number);
            let bytes = &mut image[at..at + self.descriptor_size()];
            let checksum = GroupDescriptor::checksum_of(&self.superblock, number, bytes);
            fields::put(bytes, 0x1E, checksum);
        }
    }
}
