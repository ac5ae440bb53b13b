//! Reads contents within the inode (feature inline_data): the first 60 bytes in `i_block`, the rest
//! in the attribute `system.data`.

use alloc::vec::Vec;

use super::{Ext4, Ino};
use crate::device::BlockDevice;
use crate::error::{Place, Result};
use crate::format::directory::{Entries, Entry};
use crate::format::fields;
use crate::format::inode::RawInode;

/// Number of bytes of an inline directory before its entries: the parent's inode number.
const PARENT_SIZE: usize = 4;

impl<D: BlockDevice> Ext4<D> {
    /// Returns all bytes of an inode with inline data.
    pub(crate) fn inline_data(&mut self, ino: Ino) -> Result<Vec<u8>> {
        let raw = &self.inode(ino)?.raw;
        let size = raw.size();
        let mut data = raw.block.to_vec();
        if size > data.len() as u64 {
            data.extend_from_slice(&self.inline_attribute(ino)?);
        }
        let size = usize::try_from(size)
            .ok()
            .filter(|&size| size <= data.len())
            .ok_or(Place::Inode(ino).corrupt("less inline data than the size says"))?;
        data.truncate(size);
        Ok(data)
    }

    /// Returns an inline directory's parent.
    pub(crate) fn inline_parent(&mut self, ino: Ino) -> Result<Ino> {
        Ok(fields::get(&self.inode(ino)?.raw.block, 0))
    }

    /// Calls `each` with the entries of an inline directory, which has no `.` and `..`. Entries
    /// do not cross from `i_block` into the attribute.
    pub(crate) fn inline_entries(
        &mut self,
        ino: Ino,
        mut each: impl FnMut(&Entry<'_>),
    ) -> Result<()> {
        let data = self.inline_data(ino)?;
        let has_types = self.geometry.has_types;
        let block = RawInode::default().block.len();
        let (head, tail) = data.split_at(data.len().min(block));
        for part in [head.get(PARENT_SIZE..).unwrap_or_default(), tail] {
            for entry in Entries::new(part, has_types) {
                let entry = entry.map_err(|problem| Place::Inode(ino).corrupt(problem))?;
                if entry.inode != 0 {
                    each(&entry);
                }
            }
        }
        Ok(())
    }
}
