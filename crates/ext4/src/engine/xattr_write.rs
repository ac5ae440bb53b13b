//! Changes extended attributes.
//!
//! Attributes that fit are stored in the inode, the rest in one block, and, with ea_inode, values
//! that are too large for the block in inodes of their own.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::inode_alloc::NewInode;
use super::xattr_read::{Attribute, MAX_VALUE, Value, is_inline_data};
use super::{Ext4, Ino};
use crate::cache::Kind;
use crate::device::BlockDevice;
use crate::error::{Errno, Result};
use crate::format::features::incompat;
use crate::format::fields;
use crate::format::inode::{self, flags};
use crate::format::{acl, xattr};
use micabox_file::narrow::{saturate8, saturate16, saturate32};

/// What to do if an attribute exists or does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    /// Create or replace.
    Any,
    /// Fail with [`Errno::Exists`] if the attribute exists.
    Create,
    /// Fail with [`Errno::NoAttribute`] if the attribute does not exist.
    Replace,
}

impl Attribute {
    /// Returns the size of entry and value in bytes.
    fn size(&self) -> usize {
        xattr::entry_size(self.name.len()) + xattr::value_size(self.here().len())
    }

    fn here(&self) -> &[u8] {
        match &self.value {
            Value::Here(bytes) => bytes,
            Value::Inode { .. } => &[],
        }
    }

    fn hash(&self) -> u32 {
        match &self.value {
            Value::Here(bytes) => xattr::entry_hash(&self.name, xattr::Value::Bytes(bytes)),
            Value::Inode { hash, .. } => *hash,
        }
    }
}

/// Writes entries from `start` on and their values from the end down. Offsets of values are
/// relative to `base`. In a block, entries have hashes.
fn put_attributes(
    bytes: &mut [u8],
    start: usize,
    base: usize,
    attributes: &[&Attribute],
    hashes: bool,
) {
    let mut at = start;
    let mut value_at = bytes.len();
    for attribute in attributes {
        let value = attribute.here();
        value_at = value_at.saturating_sub(xattr::value_size(value.len()));
        let (value_inode, value_size) = match attribute.value {
            Value::Here(_) => (0, saturate32(value.len())),
            Value::Inode { ino, size, .. } => (ino, size),
        };
        let has_place = !value.is_empty();
        let entry = xattr::Entry {
            name_len: saturate8(attribute.name.len()),
            name_index: attribute.index,
            value_offset: if has_place {
                saturate16(value_at - base)
            } else {
                0
            },
            value_inode,
            value_size,
            hash: if hashes || value_inode != 0 {
                attribute.hash()
            } else {
                0
            },
        };
        if let Some(place) = bytes.get_mut(at..) {
            entry.encode_into(place);
        }
        let name_at = at + xattr::ENTRY_HEADER;
        if let Some(place) = bytes.get_mut(name_at..name_at + attribute.name.len()) {
            place.copy_from_slice(&attribute.name);
        }
        if let Some(place) = bytes.get_mut(value_at..value_at + value.len()) {
            place.copy_from_slice(value);
        }
        at += xattr::entry_size(attribute.name.len());
    }
}

impl<D: BlockDevice> Ext4<D> {
    /// Sets an extended attribute by its full name ("user.comment"). Access control lists have the
    /// form of `setxattr(2)`.
    ///
    /// # Errors
    ///
    /// [`Errno::NotSupported`] for a name with an unknown prefix, [`Errno::Range`] for a name that
    /// is too long, [`Errno::TooBig`], [`Errno::NoSpace`] if inode and block have no room,
    /// [`Errno::Invalid`] for a malformed access control list, [`Errno::NotPermitted`] for a
    /// `user.` attribute of an inode that is neither a file nor a directory, those of `how`, and
    /// damage.
    pub fn set_xattr(&mut self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.begin()?;
        let (index, rest) = xattr::split_name(name).ok_or(Errno::NotSupported)?;
        if rest.len() > xattr::MAX_NAME {
            return Err(Errno::Range.into());
        }
        if value.len() > MAX_VALUE {
            return Err(Errno::TooBig.into());
        }
        let is_list = matches!(index, xattr::INDEX_ACL_ACCESS | xattr::INDEX_ACL_DEFAULT);
        let value: Box<[u8]> = if is_list {
            acl::to_disk(value).ok_or(Errno::Invalid)?.into()
        } else {
            value.into()
        };
        self.check_user_attribute(ino, index)?;
        self.make_room(32)?;
        let mut all = self.attributes(ino)?;
        let old = position(&all, index, rest);
        match (how, old) {
            (SetXattr::Create, Some(_)) => return Err(Errno::Exists.into()),
            (SetXattr::Replace, None) => return Err(Errno::NoAttribute.into()),
            _ => {}
        }
        let attribute = Attribute {
            index,
            name: rest.into(),
            value: Value::Here(value),
        };
        let dropped = match old.and_then(|old| all.get_mut(old)) {
            Some(place) => Some(core::mem::replace(place, attribute)),
            None => {
                all.push(attribute);
                None
            }
        };
        self.change_attributes(ino, all, dropped)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// [`Errno::NoAttribute`], [`Errno::NotSupported`], and damage.
    pub fn remove_xattr(&mut self, ino: Ino, name: &[u8]) -> Result<()> {
        self.begin()?;
        let (index, rest) = xattr::split_name(name).ok_or(Errno::NotSupported)?;
        self.check_user_attribute(ino, index)?;
        self.make_room(32)?;
        let mut all = self.attributes(ino)?;
        let old = position(&all, index, rest).ok_or(Errno::NoAttribute)?;
        let dropped = all.remove(old);
        self.change_attributes(ino, all, Some(dropped))
    }

    /// Checks that `user.` attributes are only set on files and directories.
    fn check_user_attribute(&mut self, ino: Ino, index: u8) -> Result<()> {
        let inode = self.inode(ino)?;
        let takes_any = inode.is(inode::S_IFREG) || inode.is(inode::S_IFDIR);
        if index == xattr::INDEX_USER && !takes_any {
            return Err(Errno::NotPermitted.into());
        }
        Ok(())
    }

    fn change_attributes(
        &mut self,
        ino: Ino,
        all: Vec<Attribute>,
        dropped: Option<Attribute>,
    ) -> Result<()> {
        let result = self.store_attributes(ino, all);
        self.stop_on(result)?;
        if let Some(Attribute {
            value: Value::Inode { ino: value, .. },
            ..
        }) = dropped
        {
            let released = self.release_value(value);
            self.stop_on(released)?;
        }
        self.touch_inode(ino)
    }

    /// Stores all attributes of an inode with a new layout.
    fn store_attributes(&mut self, ino: Ino, mut all: Vec<Attribute>) -> Result<()> {
        let block_room = self.geometry.block_size - xattr::Header::SIZE - 4;
        let inode = self.inode(ino)?;
        let header = inode.xattr_offset() + xattr::INODE_HEADER + 4;
        let inode_room = if inode.raw.extra_isize == 0 {
            0
        } else {
            inode.bytes.len().saturating_sub(header)
        };
        loop {
            let mut room = inode_room;
            let mut in_block = 0;
            let mut inside = vec![false; all.len()];
            for (attribute, inside) in all.iter().zip(&mut inside) {
                if attribute.size() <= room {
                    room -= attribute.size();
                    *inside = true;
                } else {
                    in_block += attribute.size();
                }
            }
            if in_block <= block_room {
                let (here, there): (Vec<_>, Vec<_>) =
                    all.into_iter().zip(inside).partition(|(_, inside)| *inside);
                let here: Vec<Attribute> =
                    here.into_iter().map(|(attribute, _)| attribute).collect();
                let there = there.into_iter().map(|(attribute, _)| attribute).collect();
                self.store_block_attributes(ino, there)?;
                return self.store_inode_attributes(ino, &here);
            }
            let largest = all
                .iter_mut()
                .filter(|attribute| !is_inline_data(attribute))
                .max_by_key(|attribute| attribute.here().len())
                .filter(|attribute| !attribute.here().is_empty());
            match largest {
                Some(attribute) if self.superblock.has_incompat(incompat::EA_INODE) => {
                    let value = attribute.here().to_vec();
                    let name = attribute.name.clone();
                    let moved = self.store_value(ino, &name, &value)?;
                    attribute.value = moved;
                }
                _ => return Err(Errno::NoSpace.into()),
            }
        }
    }

    /// Stores attributes, which must fit, in an inode.
    pub(crate) fn store_inode_attributes(
        &mut self,
        ino: Ino,
        attributes: &[Attribute],
    ) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        let offset = inode.xattr_offset();
        let Some(body) = inode.bytes.get_mut(offset..) else {
            return Ok(());
        };
        body.fill(0);
        if !attributes.is_empty() {
            fields::put(body, 0, xattr::MAGIC);
            let all: Vec<&Attribute> = attributes.iter().collect();
            put_attributes(body, xattr::INODE_HEADER, xattr::INODE_HEADER, &all, false);
        }
        Ok(())
    }

    /// Stores attributes, which must fit, in an inode's block.
    fn store_block_attributes(&mut self, ino: Ino, mut attributes: Vec<Attribute>) -> Result<()> {
        let old = self.inode(ino)?.raw.file_acl();
        let references = if old == 0 {
            0
        } else {
            xattr::Header::decode(self.blocks.read(&self.io, old, Kind::Xattr)?).references
        };
        if attributes.is_empty() {
            return self.release_attribute_block(ino);
        }
        attributes.sort_by(|a, b| {
            (a.index, a.name.len(), &a.name).cmp(&(b.index, b.name.len(), &b.name))
        });
        let number = if references == 1 {
            old
        } else {
            if self.available_blocks() < 2 {
                return Err(Errno::NoSpace.into());
            }
            self.release_attribute_block(ino)?;
            let goal = self.goal_of(ino);
            let (number, _) = self.allocate_blocks(goal, 1)?;
            self.add_blocks(ino, 1)?;
            self.inode_mut(ino)?.raw.set_file_acl(number);
            number
        };
        let block = self.blocks.fresh(number, Kind::Xattr)?;
        let header = xattr::Header {
            magic: xattr::MAGIC,
            references: 1,
            blocks: 1,
            hash: attributes
                .iter()
                .map(Attribute::hash)
                .try_fold(0, |all, hash| {
                    (hash != 0).then(|| xattr::block_hash(all, hash))
                })
                .unwrap_or(0),
            checksum: 0,
        };
        header.encode_into(block);
        let all: Vec<&Attribute> = attributes.iter().collect();
        put_attributes(block, xattr::Header::SIZE, 0, &all, true);
        Ok(())
    }

    /// Releases an inode's reference to its attribute block.
    fn release_attribute_block(&mut self, ino: Ino) -> Result<()> {
        let number = self.inode(ino)?.raw.file_acl();
        if number == 0 {
            return Ok(());
        }
        let mut header = xattr::Header::decode(self.blocks.read(&self.io, number, Kind::Xattr)?);
        if header.references > 1 {
            header.references -= 1;
            header.encode_into(self.blocks.write(&self.io, number, Kind::Xattr)?);
        } else {
            self.free_metadata(number)?;
        }
        self.subtract_blocks(ino, 1)?;
        self.inode_mut(ino)?.raw.set_file_acl(0);
        Ok(())
    }

    /// Stores a value in an inode of its own.
    fn store_value(&mut self, ino: Ino, name: &[u8], value: &[u8]) -> Result<Value> {
        let count = self.geometry.blocks_for(value.len() as u64);
        if self.available_blocks() < count + 16 {
            return Err(Errno::NoSpace.into());
        }
        let (uid, gid) = {
            let raw = &self.inode(ino)?.raw;
            (raw.uid(), raw.gid())
        };
        let new = NewInode {
            mode: inode::S_IFREG | 0o600,
            uid,
            gid,
        };
        let value_ino = self.allocate_inode(ino, new)?;
        let hash = xattr::value_hash(self.geometry.seed, value);
        let raw = &mut self.inode_mut(value_ino)?.raw;
        raw.flags |= flags::EA_INODE;
        raw.links_count = 1;
        raw.atime = hash;
        // The reference count, in two halves.
        raw.ctime = 0;
        raw.version_lo = 1;
        self.write_pages(value_ino, 0, value)?;
        let hash = xattr::entry_hash(name, xattr::Value::Inode { hash });
        Ok(Value::Inode {
            ino: value_ino,
            size: saturate32(value.len()),
            hash,
        })
    }

    /// Releases an attribute's reference to the inode with its value.
    fn release_value(&mut self, value: Ino) -> Result<()> {
        let raw = &mut self.inode_mut(value)?.raw;
        raw.version_lo = raw.version_lo.saturating_sub(1);
        if raw.version_lo > 0 || raw.ctime > 0 {
            return Ok(());
        }
        raw.links_count = 0;
        self.evict(value)
    }

    /// Frees the space that an inode's attributes take outside of the inode.
    pub(crate) fn drop_attributes(&mut self, ino: Ino) -> Result<()> {
        if self.inode(ino)?.has(flags::EA_INODE) {
            return Ok(());
        }
        let has_values = self.superblock.has_incompat(incompat::EA_INODE);
        if self.inode(ino)?.raw.file_acl() == 0 && !has_values {
            return Ok(());
        }
        if has_values {
            for attribute in self.attributes(ino)? {
                if let Value::Inode { ino: value, .. } = attribute.value {
                    self.release_value(value)?;
                }
            }
        }
        self.release_attribute_block(ino)
    }
}

fn position(all: &[Attribute], index: u8, name: &[u8]) -> Option<usize> {
    all.iter()
        .position(|attribute| attribute.index == index && *attribute.name == *name)
}
