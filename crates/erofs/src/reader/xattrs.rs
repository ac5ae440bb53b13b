//! Reads extended attributes.

use std::collections::HashMap;

use super::{Inode, Reader};
use crate::format::{self, XATTR_ENTRY_SIZE, XATTR_HEADER_SIZE};
use crate::source::ReadAt;
use crate::xattr::{self, SET_MAX, Xattr};
use crate::{BLOCK_SIZE, Result};

/// Shared attributes already read, by number: they need not be read, or kept, for every inode.
pub(crate) type SharedXattrs = HashMap<u32, Xattr>;

impl<R: ReadAt> Reader<R> {
    /// Returns the extended attributes of an inode, in the order of the image.
    ///
    /// # Errors
    ///
    /// [`crate::Error::CorruptInode`] for attributes that lie outside the image or are more than an
    /// inode can have.
    pub fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        self.xattrs_with(inode, &mut SharedXattrs::new())
    }

    /// Returns how many bytes of the image the attributes after their inode take.
    pub(crate) fn xattrs_size(&self, inode: &Inode) -> u64 {
        inode.xattrs_size as u64
    }

    /// Does the same as [`Reader::xattrs`], and remembers shared attributes.
    pub(crate) fn xattrs_with(
        &self,
        inode: &Inode,
        cache: &mut SharedXattrs,
    ) -> Result<Vec<Xattr>> {
        if inode.xattrs_size == 0 {
            return Ok(Vec::new());
        }
        // Inside the image, and at most 256 KiB: both checked with the inode.
        let mut body = vec![0; inode.xattrs_size];
        self.fill(&mut body, inode.xattrs_at)?;
        let shared = usize::from(format::decode_xattr_header(&body));
        let (ids, mut own) = body
            .get(XATTR_HEADER_SIZE..)
            .and_then(|rest| rest.split_at_checked(4 * shared))
            .ok_or_else(|| inode.corrupt("its shared attributes don't fit"))?;

        let mut xattrs = Vec::new();
        let mut size = 0;
        let mut add = |xattr: Xattr| {
            size += xattr.stored_size();
            xattrs.push(xattr);
            match size {
                0..=SET_MAX => Ok(()),
                _ => Err(inode.corrupt("it has more attributes than an inode can have")),
            }
        };
        while !own.is_empty() {
            let (xattr, rest) =
                parse(own).ok_or_else(|| inode.corrupt("an extended attribute is invalid"))?;
            add(xattr)?;
            own = rest;
        }
        for id in ids.chunks_exact(4) {
            let id = u32::from_le_bytes([id[0], id[1], id[2], id[3]]);
            let xattr = match cache.get(&id) {
                Some(xattr) => xattr.clone(),
                None => {
                    let xattr = self.shared_xattr(inode, id)?;
                    cache.insert(id, xattr.clone());
                    xattr
                }
            };
            add(xattr)?;
        }
        Ok(xattrs)
    }

    fn shared_xattr(&self, inode: &Inode, id: u32) -> Result<Xattr> {
        let outside = || inode.corrupt("a shared attribute lies outside the image");
        let at = u64::from(self.superblock.xattr_block) * BLOCK_SIZE + u64::from(id) * 4;
        let left = self.size.checked_sub(at).ok_or_else(outside)?;
        let mut head = [0; XATTR_ENTRY_SIZE];
        if left < head.len() as u64 {
            return Err(outside());
        }
        self.fill(&mut head, at)?;
        let (name, _, value) = format::decode_xattr_entry(&head);
        let length = format::xattr_entry_size(usize::from(name), usize::from(value));
        if left < length as u64 {
            return Err(outside());
        }
        let mut entry = vec![0; length];
        self.fill(&mut entry, at)?;
        match parse(&entry) {
            Some((xattr, _)) => Ok(xattr),
            None => Err(inode.corrupt("a shared attribute is invalid")),
        }
    }
}

/// Returns the first attribute in `bytes` and the bytes after it.
fn parse(bytes: &[u8]) -> Option<(Xattr, &[u8])> {
    let (head, _) = bytes.split_at_checked(XATTR_ENTRY_SIZE)?;
    let (name, namespace, value) = format::decode_xattr_entry(head);
    let (name, value) = (usize::from(name), usize::from(value));
    let (entry, rest) = bytes.split_at_checked(format::xattr_entry_size(name, value))?;
    let (suffix, after) = entry.get(XATTR_ENTRY_SIZE..)?.split_at_checked(name)?;
    let name = [xattr::prefix(namespace)?, suffix].concat();
    let xattr = Xattr::new(name, after.get(..value)?);
    xattr.check().ok()?;
    Some((xattr, rest))
}
