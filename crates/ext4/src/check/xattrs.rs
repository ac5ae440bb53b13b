//! Checks extended attributes in inodes and in blocks of their own.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::inode::Inode;
use super::volume::Volume;
use crate::format::features::incompat;
use crate::format::fields;
use crate::format::inode::GOOD_OLD_SIZE;
use crate::format::xattr::{
    ENTRY_HEADER, Entry, Header, INDEX_SYSTEM, INODE_HEADER, MAGIC, Value, block_hash, checksum_of,
    entry_hash, entry_hash_signed, entry_size,
};

/// `e_name_index` of the encryption context, whose name is `c`.
const INDEX_ENCRYPTION: u8 = 9;
/// Size in bytes of the largest value in an inode of its own.
const VALUE_INODE_MAX: u32 = 1 << 24;

/// The facts of an inode's attributes that the rest of the check needs.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Inodes that hold values, with the lengths of the values.
    pub(super) value_inodes: Vec<(u32, u32)>,
    /// The second part of an inode's inline data (`system.data`).
    pub(super) inline_data: Option<Vec<u8>>,
    /// The encryption context.
    pub(super) encryption: Option<Vec<u8>>,
}

impl Facts {
    /// Whether the encryption context has a known form.
    pub(super) fn is_encryption_sound(&self) -> bool {
        self.encryption.as_ref().is_none_or(|value| {
            matches!((value.first(), value.len()), (Some(1), 28) | (Some(2), 40))
        })
    }
}

/// Location of a list of entries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Inode,
    Block,
}

/// Checks the attributes in an inode.
pub(super) fn in_inode(volume: &Volume, inode: &Inode, facts: &mut Facts) -> Result<(), String> {
    let start = GOOD_OLD_SIZE + usize::from(inode.raw.extra_isize);
    let body = inode.bytes.get(start..).unwrap_or_default();
    if inode.raw.extra_isize == 0
        || body.len() < INODE_HEADER
        || fields::get::<u32>(body, 0) != MAGIC
    {
        return Ok(());
    }
    // Value offsets count from the first entry.
    let area = body.get(INODE_HEADER..).unwrap_or_default();
    entries(volume, area, 0, Place::Inode, facts).map(|_| ())
}

/// Checks a block of attributes, and returns how many inodes share it according to its header.
pub(super) fn in_block(
    volume: &Volume,
    number: u64,
    block: &[u8],
    facts: &mut Facts,
) -> Result<u32, String> {
    let header = Header::decode(block);
    if header.magic != MAGIC {
        return Err(format!("its magic number is {:#x}", header.magic));
    }
    if header.blocks != 1 {
        return Err(format!("h_blocks is {}", header.blocks));
    }
    if volume.has_checksums() && checksum_of(volume.seed, number, block) != header.checksum {
        return Err("its checksum does not match".into());
    }
    let hash = entries(volume, block, Header::SIZE, Place::Block, facts)?;
    // A hash of 0 means that the block must not be shared.
    if header.hash != 0 && hash.is_some_and(|hash| hash != header.hash) {
        return Err(format!(
            "the hash {:#x} of all its entries is invalid",
            header.hash
        ));
    }
    Ok(header.references)
}

/// Walks the entries of `area` from `start` on; values lie in the same area. Returns the combined
/// hash, if every entry could be hashed.
fn entries(
    volume: &Volume,
    area: &[u8],
    start: usize,
    place: Place,
    facts: &mut Facts,
) -> Result<Option<u32>, String> {
    let mut taken: Vec<(usize, usize)> = Vec::new();
    let mut hash = Some(0_u32);
    let mut unreadable = false;
    let mut at = start;
    loop {
        let rest = area.get(at..).unwrap_or_default();
        if rest.len() < 4 {
            return Err("the list of entries has no end".into());
        }
        if fields::get::<u32>(rest, 0) == 0 {
            break;
        }
        let entry = Entry::decode(rest);
        let length = usize::from(entry.name_len);
        let next = at + entry_size(length);
        if next + 4 > area.len() {
            return Err("allocation collision: an entry does not fit".into());
        }
        let name = rest
            .get(ENTRY_HEADER..ENTRY_HEADER + length)
            .unwrap_or_default();
        if place == Place::Block && entry.name_index == 0 {
            return Err("an attribute has a bad name: its index is 0".into());
        }
        if entry.value_inode == 0 {
            if place == Place::Block && usize::from(entry.value_offset) > area.len() {
                return Err("an attribute's value is outside".into());
            }
            let room = room_of(area, &entry, &mut taken)?;
            let value = room.get(..entry.value_size as usize).unwrap_or_default();
            // Applies to empty values too: e2fsck then does not read any attribute.
            unreadable |= usize::from(entry.value_offset) > area.len();
            // In inodes the hash is optional.
            let checked = place == Place::Block || entry.hash != 0;
            let fits = [
                entry_hash(name, Value::Bytes(room)),
                entry_hash_signed(name, Value::Bytes(room)),
            ]
            .contains(&entry.hash);
            if checked && !fits {
                return Err(format!(
                    "an attribute has a hash ({}) which is invalid",
                    entry.hash
                ));
            }
            match (entry.name_index, name) {
                (INDEX_SYSTEM, b"data") => facts.inline_data = Some(value.to_vec()),
                (INDEX_ENCRYPTION, b"c") => facts.encryption = Some(value.to_vec()),
                _ => {}
            }
        } else if volume.has_incompat(incompat::EA_INODE) && entry.value_size <= VALUE_INODE_MAX {
            facts
                .value_inodes
                .push((entry.value_inode, entry.value_size));
        } else {
            return Err(format!(
                "illegal extended attribute value inode {}",
                entry.value_inode
            ));
        }
        hash = hash.map(|hash| block_hash(hash, entry.hash));
        at = next;
    }
    if unreadable {
        facts.inline_data = None;
    }
    // The end mark occupies space, too.
    taken.push((start, at + 4));
    taken.sort_unstable();
    let overlap = taken
        .iter()
        .zip(taken.iter().skip(1))
        .any(|(one, other)| one.1 > other.0);
    if overlap {
        Err("allocation collision".into())
    } else {
        Ok(hash)
    }
}

/// Marks the space of an entry's value as taken and returns it: the length of the value, rounded up
/// to a multiple of four bytes.
fn room_of<'a>(
    area: &'a [u8],
    entry: &Entry,
    taken: &mut Vec<(usize, usize)>,
) -> Result<&'a [u8], String> {
    let (offset, length) = (usize::from(entry.value_offset), entry.value_size as usize);
    if length == 0 {
        return Ok(&[]);
    }
    let room = length
        .checked_next_multiple_of(4)
        .and_then(|room| offset.checked_add(room))
        .and_then(|end| area.get(offset..end))
        .ok_or_else(|| {
            format!("allocation collision: a value of {length} bytes at {offset} is outside")
        })?;
    taken.push((offset, offset + room.len()));
    Ok(room)
}
