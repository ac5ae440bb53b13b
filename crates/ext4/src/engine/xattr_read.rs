//! Reads extended attributes.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::{Ext4, Ino};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Errno, Place, Result};
use crate::format::features::incompat;
use crate::format::fields;
use crate::format::inode::flags;
use crate::format::{acl, xattr};

/// Size in bytes of the largest value, as in Linux.
pub(crate) const MAX_VALUE: usize = 65536;

/// The location of an attribute's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Here(Box<[u8]>),
    /// In an inode of its own, with this size in bytes.
    Inode {
        ino: Ino,
        size: u32,
        hash: u32,
    },
}

/// An attribute as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) index: u8,
    /// The name without its prefix.
    pub(crate) name: Box<[u8]>,
    pub(crate) value: Value,
}

/// Parses a sequence of entries; values lie in `values` at the offsets of the entries.
fn parse(entries: &[u8], values: &[u8], place: Place, found: &mut Vec<Attribute>) -> Result<()> {
    let corrupt = |problem| place.corrupt(problem);
    let mut at = 0;
    // Values do not overlap, so their total size is limited by the area.
    let mut room = values.len();
    loop {
        let rest = entries.get(at..).unwrap_or_default();
        if rest.len() < 4 || fields::get::<u32>(rest, 0) == 0 {
            return Ok(());
        }
        let entry = xattr::Entry::decode(rest);
        let name = rest
            .get(xattr::ENTRY_HEADER..xattr::ENTRY_HEADER + usize::from(entry.name_len))
            .ok_or(corrupt("the name of an extended attribute is cut off"))?;
        let size = entry.value_size as usize;
        let value = if entry.value_inode != 0 {
            Value::Inode {
                ino: entry.value_inode,
                size: entry.value_size,
                hash: entry.hash,
            }
        } else {
            let from = usize::from(entry.value_offset);
            let value = from.checked_add(size).and_then(|to| values.get(from..to));
            let value = if size == 0 { Some(&[][..]) } else { value };
            room = room
                .checked_sub(size)
                .ok_or(corrupt("the values of extended attributes overlap"))?;
            Value::Here(
                value
                    .ok_or(corrupt("the value of an extended attribute is cut off"))?
                    .into(),
            )
        };
        found.push(Attribute {
            index: entry.name_index,
            name: name.into(),
            value,
        });
        at += xattr::entry_size(entry.name_len.into());
    }
}

impl<D: BlockDevice> Ext4<D> {
    /// Returns the attributes in an inode.
    pub(crate) fn inode_attributes(&mut self, ino: Ino) -> Result<Vec<Attribute>> {
        let inode = self.inode(ino)?;
        let body = inode.bytes.get(inode.xattr_offset()..).unwrap_or_default();
        let mut found = Vec::new();
        if inode.raw.extra_isize != 0 && fields::get::<u32>(body, 0) == xattr::MAGIC {
            let entries = body.get(xattr::INODE_HEADER..).unwrap_or_default();
            parse(entries, entries, Place::Inode(ino), &mut found)?;
        }
        Ok(found)
    }

    /// Returns the attributes in an inode's block.
    pub(crate) fn block_attributes(&mut self, ino: Ino) -> Result<Vec<Attribute>> {
        let number = self.inode(ino)?.raw.file_acl();
        let mut found = Vec::new();
        if number != 0 {
            let block = self.blocks.read(&self.io, number, Kind::Xattr)?;
            let entries = block.get(xattr::Header::SIZE..).unwrap_or_default();
            parse(entries, block, Place::Block(number), &mut found)?;
        }
        Ok(found)
    }

    /// Returns all attributes: those in the inode, then those in its block.
    pub(crate) fn attributes(&mut self, ino: Ino) -> Result<Vec<Attribute>> {
        let mut all = self.inode_attributes(ino)?;
        all.append(&mut self.block_attributes(ino)?);
        Ok(all)
    }

    /// Returns the value of `system.data`: the end of inline data.
    pub(crate) fn inline_attribute(&mut self, ino: Ino) -> Result<Box<[u8]>> {
        let found = self.inode_attributes(ino)?.into_iter().find(is_inline_data);
        match found.map(|attribute| attribute.value) {
            Some(Value::Here(value)) => Ok(value),
            _ => Ok(Box::default()),
        }
    }

    /// Returns a value's bytes, as stored.
    pub(crate) fn value_bytes(&mut self, value: &Value) -> Result<Vec<u8>> {
        match value {
            Value::Here(bytes) => Ok(bytes.to_vec()),
            &Value::Inode { ino, size, .. } => {
                let place = Place::Inode(ino);
                if !self.superblock.has_incompat(incompat::EA_INODE) {
                    return Err(place.corrupt("a value in an inode without the feature for it"));
                }
                let inode = self.inode(ino)?;
                if !inode.has(flags::EA_INODE) || inode.raw.size() != u64::from(size) {
                    return Err(place.corrupt("not the value of an extended attribute"));
                }
                let size = usize::try_from(size).ok().filter(|&size| size <= MAX_VALUE);
                let mut bytes = vec![0; size.ok_or(place.corrupt("a value that is too large"))?];
                self.read(ino, 0, &mut bytes)?;
                if xattr::value_hash(self.geometry.seed, &bytes) != self.inode(ino)?.raw.atime {
                    return Err(place.corrupt("the hash of an extended attribute's value is wrong"));
                }
                Ok(bytes)
            }
        }
    }

    /// Returns the value of an extended attribute by its full name ("security.capability"). Access
    /// control lists are returned in the form of `getxattr(2)`.
    ///
    /// # Errors
    ///
    /// [`Errno::NoAttribute`], [`Errno::NotSupported`] for a name with an unknown prefix, and
    /// damage.
    pub fn xattr(&mut self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let (index, rest) = xattr::split_name(name).ok_or(Errno::NotSupported)?;
        let all = self.attributes(ino)?;
        let attribute = all
            .iter()
            .find(|attribute| attribute.index == index && *attribute.name == *rest)
            .filter(|attribute| !is_inline_data(attribute))
            .ok_or(Errno::NoAttribute)?;
        let bytes = self.value_bytes(&attribute.value)?;
        if matches!(index, xattr::INDEX_ACL_ACCESS | xattr::INDEX_ACL_DEFAULT) {
            return acl::from_disk(&bytes)
                .ok_or(Place::Inode(ino).corrupt("a malformed access control list"));
        }
        Ok(bytes)
    }

    /// Returns the full names of all extended attributes.
    ///
    /// # Errors
    ///
    /// Damage.
    pub fn xattr_names(&mut self, ino: Ino) -> Result<Vec<Box<[u8]>>> {
        let all = self.attributes(ino)?;
        let names = all
            .iter()
            .filter(|attribute| !is_inline_data(attribute))
            .filter_map(|attribute| {
                let prefix = xattr::prefix(attribute.index)?;
                Some([prefix, &attribute.name].concat().into())
            });
        Ok(names.collect())
    }
}

/// Whether an attribute is part of a file's contents.
pub(crate) fn is_inline_data(attribute: &Attribute) -> bool {
    attribute.index == xattr::INDEX_SYSTEM && *attribute.name == *b"data"
}
