//! Where the bytes of a compressed file are: which parts of it are in which blocks, by which algorithm. Inflating them is
//! up to the caller.
//!
//! Source of the format: Linux, `fs/erofs/erofs_fs.h` and `zmap.c`. A file is divided into logical clusters, each of
//! which has an entry in an index: it begins with compressed data (a head), or goes on with that of the one before. What
//! lies between the places where two heads begin is one physical cluster.

use super::{Inode, Reader};
use crate::format::Layout;
use crate::source::ReadAt;
use crate::{BLOCK_SIZE, Error, Result};
use micabox_file::narrow::{in_memory, saturate8, saturate16};

/// Bytes of a physical cluster, in the image and inflated: the kernel reads no larger ones.
const PACKED_MOST: u64 = 1 << 20;
const LENGTH_MOST: u64 = 12 << 20;

/// Bits of `h_advise`: packs of 16 entries; several blocks for HEAD1, and for HEAD2 and plain ones; the end of the file
/// behind the index; plain clusters keep the place of their bytes within a block; the end of the file is in the packed
/// inode.
const ADVISE_PACKS_OF_16: u16 = 0x1;
const ADVISE_SEVERAL_BLOCKS: [u16; 2] = [0x2, 0x4];
const ADVISE_INLINE: u16 = 0x8;
const ADVISE_ROTATED: u16 = 0x10;
const ADVISE_FRAGMENT: u16 = 0x20;

/// In an entry that is no head: the other bits are the number of the head's blocks.
const BLOCKS: u16 = 1 << 11;
/// In the map header: all of the file is in the packed inode.
const ALL_IN_PACKED: u64 = 1 << 63;

const PLAIN: u8 = 0;
const HEAD1: u8 = 1;
const NO_HEAD: u8 = 2;

/// A part of a compressed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cluster {
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Its length in the file, in bytes.
    pub length: u64,
    /// Where its bytes are.
    pub at: Place,
}

/// Where the bytes of a part of a compressed file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// As they are.
    Stored {
        /// Offset of the blocks in the image, in bytes.
        at: u64,
        /// Length of the blocks in bytes.
        size: u64,
        /// Offset in the blocks of the first byte; those after the last block's end are at its beginning.
        first: u64,
    },
    /// Compressed, behind zeros. They may contain more than the part.
    Packed {
        /// Offset in the image, in bytes.
        at: u64,
        /// Length in bytes.
        size: u64,
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// Among those of the packed inode ([`Reader::packed_inode`]).
    Fragment {
        /// Offset in the packed inode, in bytes.
        offset: u64,
    },
}

/// An algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// A block of LZ4.
    Lz4,
    /// MicroLZMA.
    Lzma,
    /// A stream of DEFLATE.
    Deflate,
    /// A frame of zstd.
    Zstd,
}

impl Algorithm {
    fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Lz4,
            1 => Self::Lzma,
            2 => Self::Deflate,
            3 => Self::Zstd,
            _ => return None,
        })
    }
}

/// The parts of a file, in their order.
#[derive(Debug)]
pub struct Clusters<'r, R> {
    reader: &'r Reader<R>,
    inode: Inode,
    header: Header,
    /// Where the index begins in the image, in bytes.
    index: u64,
    /// Number of entries in the index.
    count: u64,
    /// The next entry that is to be read.
    next: u64,
    /// The head before it.
    head: Option<Head>,
    /// The last pack that was read, and where it begins.
    pack: (u64, [u8; 32]),
    is_over: bool,
}

/// The map header.
#[derive(Debug, Clone, Copy)]
struct Header {
    /// Offset of a fragment, or of all of the file, in the packed inode.
    fragment: u64,
    is_all_in_packed: bool,
    inline: u64,
    advise: u16,
    algorithms: [u8; 2],
}

/// A part whose end is not known yet.
#[derive(Debug, Clone, Copy)]
struct Head {
    offset: u64,
    kind: u8,
    block: u32,
    /// None if its index says nothing of them: one.
    blocks: Option<u64>,
}

/// An entry of the index.
#[derive(Debug, Clone, Copy)]
struct Entry {
    kind: u8,
    /// Of a head: where it begins in its logical cluster. Else what else there is to say of it.
    low: u16,
    /// Of a head: its first block.
    block: u32,
    /// Where in the image the next entry would be, in bytes.
    end: u64,
}

impl<R: ReadAt> Reader<R> {
    /// Returns whether a file is compressed: only [`Reader::clusters`] reads it then.
    pub fn is_compressed(&self, inode: &Inode) -> bool {
        matches!(
            inode.layout,
            Layout::CompressedFull | Layout::CompressedCompact
        )
    }

    /// Returns the inode that has the ends of compressed files.
    ///
    /// # Errors
    ///
    /// [`Error::CorruptInode`]; [`Error::Corrupt`] if there is none.
    pub fn packed_inode(&self) -> Result<Inode> {
        match self.superblock.packed_nid {
            0 => Err(Error::Corrupt("it has no packed inode")),
            nid => self.inode(nid),
        }
    }

    /// Returns the parts of a compressed file, in their order: together they are the file.
    ///
    /// # Errors
    ///
    /// [`Error::CorruptInode`]; [`Error::Unsupported`].
    pub fn clusters(&self, inode: &Inode) -> Result<Clusters<'_, R>> {
        let header_at = inode.body_at().next_multiple_of(8);
        let mut bytes = [0; 8];
        if header_at + 8 > self.size {
            return Err(inode.corrupt("its map header lies outside the image"));
        }
        self.fill(&mut bytes, header_at)?;
        let header = Header::of(bytes)?;
        let is_full = inode.layout == Layout::CompressedFull;
        if is_full && !header.is_all_in_packed && header.advise & ADVISE_PACKS_OF_16 != 0 {
            return Err(Error::Unsupported("extents of compressed files"));
        }
        let index = header_at + if is_full { 16 } else { 8 };
        let count = inode.size.div_ceil(BLOCK_SIZE);
        // An entry of a pack of 16 takes two bytes, any other takes more.
        let least = index.checked_add(count.saturating_mul(if is_full { 8 } else { 2 }));
        if !header.is_all_in_packed && least.is_none_or(|end| end > self.size) {
            return Err(inode.corrupt("its index lies outside the image"));
        }
        Ok(Clusters {
            reader: self,
            inode: inode.clone(),
            header,
            index,
            count,
            next: 0,
            head: None,
            pack: (0, [0; 32]),
            is_over: false,
        })
    }
}

impl Header {
    fn of(bytes: [u8; 8]) -> Result<Self> {
        let all = u64::from_le_bytes(bytes);
        let [f0, f1, f2, f3, advise_low, advise_high, algorithms, bits] = bytes;
        if all & ALL_IN_PACKED != 0 {
            return Ok(Self {
                fragment: all & !ALL_IN_PACKED,
                is_all_in_packed: true,
                inline: 0,
                advise: 0,
                algorithms: [0; 2],
            });
        }
        let advise = u16::from_le_bytes([advise_low, advise_high]);
        let fragment = u32::from_le_bytes([f0, f1, f2, f3]);
        if bits & 15 != 0 {
            return Err(Error::Unsupported("logical clusters of several blocks"));
        }
        let inline = if advise & ADVISE_INLINE == 0 {
            0
        } else {
            u16::from_le_bytes([f2, f3])
        };
        Ok(Self {
            fragment: fragment.into(),
            is_all_in_packed: false,
            inline: inline.into(),
            advise,
            algorithms: [algorithms & 15, algorithms >> 4],
        })
    }

    fn has(&self, advise: u16) -> bool {
        self.advise & advise != 0
    }

    /// Returns whether a head of this kind may have several blocks.
    fn has_several_blocks(&self, kind: u8) -> bool {
        let [first, second] = ADVISE_SEVERAL_BLOCKS;
        self.has(if kind == HEAD1 { first } else { second })
    }
}

impl<R: ReadAt> Iterator for Clusters<'_, R> {
    type Item = Result<Cluster>;

    fn next(&mut self) -> Option<Result<Cluster>> {
        if self.is_over || self.inode.size == 0 {
            return None;
        }
        let found = self.advance();
        let is_last = |cluster: &Cluster| cluster.offset + cluster.length >= self.inode.size;
        self.is_over = found.as_ref().map_or(true, is_last);
        Some(found)
    }
}

impl<R: ReadAt> Clusters<'_, R> {
    /// Reads entries until the end of the next part is known.
    fn advance(&mut self) -> Result<Cluster> {
        if self.header.is_all_in_packed {
            return Ok(Cluster {
                offset: 0,
                length: self.inode.size,
                at: Place::Fragment {
                    offset: self.header.fragment,
                },
            });
        }
        loop {
            if self.next >= self.count {
                return self.last();
            }
            let number = self.next;
            self.next += 1;
            let entry = self.entry(number)?;
            if entry.kind == NO_HEAD {
                let head = self.head.as_mut();
                let head = head.ok_or(Error::CorruptInode {
                    nid: self.inode.nid,
                    problem: "its index begins without a head",
                })?;
                if entry.low & BLOCKS != 0 {
                    // 0 where the part is a fragment.
                    head.blocks = Some((entry.low & !BLOCKS).into());
                }
                continue;
            }
            let offset = number * BLOCK_SIZE + u64::from(entry.low);
            let head = Head {
                offset,
                kind: entry.kind,
                block: entry.block,
                blocks: None,
            };
            if u64::from(entry.low) >= BLOCK_SIZE || offset > self.inode.size {
                return Err(self.inode.corrupt("a cluster begins outside of its entry"));
            }
            if offset == self.inode.size {
                // It only says where the file ends within a logical cluster.
                return self.last();
            }
            match self.head.replace(head) {
                // Of no bytes: what was before it ends where it begins.
                Some(before) if before.offset == offset => {}
                Some(before) => return self.cluster(before, offset, None),
                None if offset > 0 => {
                    return Err(self.inode.corrupt("its index begins without a head"));
                }
                None => {}
            }
        }
    }

    /// Returns the last part, which may be somewhere else.
    fn last(&mut self) -> Result<Cluster> {
        let head = self.head.take();
        let head = head.filter(|head| head.offset < self.inode.size);
        let head = head.ok_or_else(|| self.inode.corrupt("its index ends before the file does"))?;
        let size = self.inode.size;
        if self.header.inline > 0 {
            let at = self.entry(self.count - 1)?.end;
            let inline = self.header.inline;
            if at % BLOCK_SIZE + inline > BLOCK_SIZE {
                return Err(self
                    .inode
                    .corrupt("its inline end crosses a block boundary"));
            }
            return self.cluster(head, size, Some((at, inline)));
        }
        if self.header.has(ADVISE_FRAGMENT) {
            let high = match self.inode.layout {
                Layout::CompressedFull => u64::from(head.block) << 32,
                _ => 0,
            };
            return Ok(Cluster {
                offset: head.offset,
                length: size - head.offset,
                at: Place::Fragment {
                    offset: self.header.fragment | high,
                },
            });
        }
        self.cluster(head, size, None)
    }

    /// Returns the part from a head to `end`, whose bytes are where the head says, or at `inline`.
    fn cluster(&self, head: Head, end: u64, inline: Option<(u64, u64)>) -> Result<Cluster> {
        let corrupt = |problem| self.inode.corrupt(problem);
        let length = end
            .checked_sub(head.offset)
            .filter(|length| *length <= LENGTH_MOST)
            .ok_or_else(|| corrupt("a cluster has an impossible length"))?;
        let is_possible = |blocks| blocks > 0 && self.header.has_several_blocks(head.kind);
        let (at, size) = match (inline, head.blocks) {
            (Some(inline), _) => inline,
            (None, Some(blocks)) if !is_possible(blocks) => {
                return Err(corrupt("a cluster has an impossible length"));
            }
            (None, blocks) => {
                let blocks = blocks.unwrap_or(1);
                (u64::from(head.block) * BLOCK_SIZE, blocks * BLOCK_SIZE)
            }
        };
        if size > PACKED_MOST || at + size > self.reader.size {
            return Err(corrupt("its data lies outside the image"));
        }
        let at = match head.kind {
            PLAIN if length > size => {
                return Err(corrupt("a cluster that is not compressed is too short"));
            }
            PLAIN => {
                let is_rotated = self.header.has(ADVISE_ROTATED) && inline.is_none();
                let first = if is_rotated {
                    head.offset % BLOCK_SIZE
                } else {
                    0
                };
                Place::Stored { at, size, first }
            }
            kind => {
                let [first, second] = self.header.algorithms;
                let number = if kind == HEAD1 { first } else { second };
                let algorithm = Algorithm::of(number);
                let algorithm =
                    algorithm.ok_or(Error::Unsupported("an algorithm newer than this program"))?;
                Place::Packed {
                    at,
                    size,
                    algorithm,
                }
            }
        };
        Ok(Cluster {
            offset: head.offset,
            length,
            at,
        })
    }

    /// Reads an entry of the index.
    fn entry(&mut self, number: u64) -> Result<Entry> {
        if self.inode.layout == Layout::CompressedFull {
            self.full_entry(number)
        } else {
            self.packed_entry(number)
        }
    }

    fn full_entry(&self, number: u64) -> Result<Entry> {
        let at = self.index + number * 8;
        let mut bytes = [0; 8];
        self.fill(&mut bytes, at)?;
        let [advise, _, low0, low1, b0, b1, b2, b3] = bytes;
        let kind = advise & 3;
        Ok(Entry {
            kind,
            low: if kind == NO_HEAD {
                u16::from_le_bytes([b0, b1])
            } else {
                u16::from_le_bytes([low0, low1])
            },
            block: u32::from_le_bytes([b0, b1, b2, b3]),
            end: at + 8,
        })
    }

    /// Reads an entry of a pack: 2 or 16 entries of 16 or 14 bits, and behind them a block's number. Packs of 16 begin at
    /// multiples of their length, so there may be some of 2 before them, and after.
    fn packed_entry(&mut self, number: u64) -> Result<Entry> {
        let before = (32 - self.index % 32) / 4 % 8;
        let mut in_16 = 0;
        if self.header.has(ADVISE_PACKS_OF_16) && before < self.count {
            in_16 = (self.count - before) / 16 * 16;
        }
        let (at, per_pack, bits) = match number {
            _ if number < before => (self.index + number * 4, 2, 16),
            _ if number - before < in_16 => {
                let at = self.index + before * 4 + (number - before) * 2;
                (at, 16, 14)
            }
            _ => {
                let at = self.index + before * 4 + in_16 * 2 + (number - before - in_16) * 4;
                (at, 2, 16)
            }
        };
        let entry_size = if per_pack == 2 { 4 } else { 2 };
        let size = entry_size * per_pack;
        let start = at / size * size;
        if self.pack.0 != start {
            let mut bytes = [0; 32];
            let pack = bytes.get_mut(..in_memory(size)).unwrap_or_default();
            self.fill(pack, start)?;
            self.pack = (start, bytes);
        }
        let pack = self.pack.1.get(..in_memory(size)).unwrap_or_default();
        let decode = |entry: u64| {
            let bit = in_memory(entry * bits);
            let word = pack.get(bit / 8..).and_then(|rest| rest.first_chunk());
            let word = u32::from_le_bytes(word.copied().unwrap_or_default()) >> (bit % 8);
            // 12 bits, and two.
            (saturate8((word >> 12) & 3), saturate16(word & 0xfff))
        };
        let place = (at - start) / entry_size;
        let (kind, low) = decode(place);
        let mut block = 0;
        if kind != NO_HEAD {
            let tail = pack.last_chunk().copied().unwrap_or_default();
            let first = u32::from_le_bytes(tail);
            let before = self.blocks_before(place, decode);
            block = first.wrapping_add(before);
        }
        Ok(Entry {
            kind,
            low,
            block,
            end: start + size,
        })
    }

    /// Returns how many blocks the heads before an entry have in its pack, and one more where each has one: the pack's
    /// own block is then the one before.
    fn blocks_before(&self, place: u64, decode: impl Fn(u64) -> (u8, u16)) -> u32 {
        let has_several = self.header.has(ADVISE_SEVERAL_BLOCKS[0]);
        let mut blocks = u32::from(!has_several);
        for entry in 0..place {
            blocks += match decode(entry) {
                (NO_HEAD, low) if has_several && low & BLOCKS != 0 => (low & !BLOCKS).into(),
                (NO_HEAD, _) => 0,
                _ => {
                    let (kind, low) = decode(entry + 1);
                    let is_counted = kind == NO_HEAD && low & BLOCKS != 0;
                    u32::from(!(has_several && is_counted))
                }
            };
        }
        blocks
    }

    fn fill(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        if at + bytes.len() as u64 > self.reader.size {
            return Err(self.inode.corrupt("its index lies outside the image"));
        }
        self.reader.fill(bytes, at)
    }
}
