//! Reads extended attributes.

use std::collections::HashMap;

use super::{Inode, Reader};
use crate::format::{self, COMPAT_PLAIN_PREFIXES, XATTR_ENTRY_SIZE, XATTR_HEADER_SIZE};
use crate::source::ReadAt;
use crate::xattr::{self, SET_MAX, Xattr};
use crate::{BLOCK_SIZE, Error, Result};

/// Shared attributes already read, by number: they need not be read, or kept, for every inode. `None`: one without a
/// name.
pub(crate) type SharedXattrs = HashMap<u32, Option<Xattr>>;

/// The bit of a namespace's number that makes it the number of one of the image's own prefixes.
const OWN_PREFIX: u8 = 0x80;
/// The number of no namespace. Linux has no names for such attributes: mkfs.erofs leaves room in zeros
/// (`--root-xattr-isize`), and keeps digests of contents under a prefix of the image's own (`--xattr-inode-digest`).
const NO_NAMESPACE: u8 = 0;
/// Most bytes of such a prefix after that of its namespace: Linux's `EROFS_NAME_LEN`.
const INFIX_MAX: usize = 255;

/// A prefix of attributes' names that the image has itself.
#[derive(Debug)]
pub(super) struct Prefix {
    /// The number of the namespace that it begins with.
    namespace: u8,
    /// What follows that namespace's prefix.
    infix: Box<[u8]>,
}

impl<R: ReadAt> Reader<R> {
    /// Reads the image's own prefixes of attributes' names.
    pub(super) fn read_prefixes(&self) -> Result<Vec<Prefix>> {
        let is_plain = self.superblock.feature_compat & COMPAT_PLAIN_PREFIXES != 0;
        let packed = match (self.superblock.prefixes, self.superblock.packed_nid) {
            (0, _) => return Ok(Vec::new()),
            (_, 0) => None,
            _ if is_plain => None,
            _ => Some(self.packed_inode()?),
        };
        if packed
            .as_ref()
            .is_some_and(|inode| self.is_compressed(inode))
        {
            return Err(Error::Unsupported("compressed prefixes of attribute names"));
        }
        let end = packed.as_ref().map_or(self.size, |inode| inode.size);
        let fill = |bytes: &mut [u8], at: u64| match &packed {
            _ if end
                .checked_sub(at)
                .is_none_or(|left| left < bytes.len() as u64) =>
            {
                Err(Error::Corrupt("prefixes of attribute names lie outside"))
            }
            None => self.fill(bytes, at),
            Some(inode) => self.read(inode, at, bytes).map(|_| ()),
        };
        let mut at = u64::from(self.superblock.prefixes_at) * 4;
        let mut prefixes = Vec::new();
        for _ in 0..self.superblock.prefixes {
            let mut length = [0; 2];
            fill(&mut length, at)?;
            // The namespace's number comes first.
            let length = usize::from(u16::from_le_bytes(length));
            if !(1..=1 + INFIX_MAX).contains(&length) {
                return Err(Error::Corrupt(
                    "a prefix of attribute names has a wrong length",
                ));
            }
            let (mut namespace, mut infix) = ([0], vec![0; length - 1]);
            fill(&mut namespace, at + 2)?;
            fill(&mut infix, at + 3)?;
            let [namespace] = namespace;
            let infix = infix.into();
            prefixes.push(Prefix { namespace, infix });
            at = (at + 2 + length as u64).next_multiple_of(4);
        }
        Ok(prefixes)
    }

    /// Returns the first attribute in `bytes`, if it has a name in Linux, and the bytes after it.
    fn parse<'b>(&self, bytes: &'b [u8]) -> Option<(Option<Xattr>, &'b [u8])> {
        let (head, _) = bytes.split_at_checked(XATTR_ENTRY_SIZE)?;
        let (name, namespace, value) = format::decode_xattr_entry(head);
        let (name, value) = (usize::from(name), usize::from(value));
        let (entry, rest) = bytes.split_at_checked(format::xattr_entry_size(name, value))?;
        let (suffix, after) = entry.get(XATTR_ENTRY_SIZE..)?.split_at_checked(name)?;
        let (namespace, infix) = if namespace & OWN_PREFIX == 0 {
            (namespace, &b""[..])
        } else {
            let own = self.prefixes.get(usize::from(namespace & !OWN_PREFIX))?;
            (own.namespace, &*own.infix)
        };
        if namespace == NO_NAMESPACE {
            return Some((None, rest));
        }
        let name = [xattr::prefix(namespace)?, infix, suffix].concat();
        let xattr = Xattr::new(name, after.get(..value)?);
        xattr.check().ok()?;
        Some((Some(xattr), rest))
    }

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
        let mut add = |xattr: Option<Xattr>| {
            if let Some(xattr) = xattr {
                size += xattr.stored_size();
                xattrs.push(xattr);
            }
            match size {
                0..=SET_MAX => Ok(()),
                _ => Err(inode.corrupt("it has more attributes than an inode can have")),
            }
        };
        while !own.is_empty() {
            let parsed = self.parse(own);
            let (xattr, rest) =
                parsed.ok_or_else(|| inode.corrupt("an extended attribute is invalid"))?;
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

    fn shared_xattr(&self, inode: &Inode, id: u32) -> Result<Option<Xattr>> {
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
        match self.parse(&entry) {
            Some((xattr, _)) => Ok(xattr),
            None => Err(inode.corrupt("a shared attribute is invalid")),
        }
    }
}
