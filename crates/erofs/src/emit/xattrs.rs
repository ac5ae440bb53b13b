//! Extended attributes on disk; attributes that several inodes have in common are stored once.

use std::collections::HashMap;

use crate::error::InodeProblem;
use crate::format::{self, XATTR_HEADER_SIZE};
use crate::tree::{Inode, InodeId, Tree};
use crate::xattr::{self, Xattr};
use micabox_file::narrow::{saturate8, saturate16};

/// An inode counts its shared attributes with 8 bits.
const SHARED_MAX: usize = 255;

/// The attributes that are stored apart from the inodes.
pub(super) struct SharedXattrs<'t> {
    /// Positions in units of 4 bytes.
    positions: HashMap<&'t Xattr, u32>,
    /// In order of position.
    stored: Vec<&'t Xattr>,
    /// Total size in bytes.
    size: u64,
}

impl<'t> SharedXattrs<'t> {
    /// Finds the attributes that take less space when shared.
    pub(super) fn collect(tree: &'t Tree, order: &[InodeId]) -> Self {
        let all = || {
            order
                .iter()
                .flat_map(|&id| &tree.inode(id).meta.xattrs)
                .filter(|xattr| xattr.check().is_ok())
        };
        let mut uses: HashMap<&Xattr, u64> = HashMap::new();
        for xattr in all() {
            *uses.entry(xattr).or_default() += 1;
        }
        let mut shared = Self {
            positions: HashMap::new(),
            stored: Vec::new(),
            size: 0,
        };
        for xattr in all() {
            let size = xattr.stored_size() as u64;
            let uses = uses.get(xattr).copied().unwrap_or(0);
            let position = u32::try_from(shared.size / 4);
            // A position must still fit after the offset within its block is added.
            let Ok(position) = position.map(|p| p.saturating_add(1024)) else {
                continue;
            };
            if size * uses > size + 4 * uses && !shared.positions.contains_key(xattr) {
                shared.positions.insert(xattr, position - 1024);
                shared.stored.push(xattr);
                shared.size += size;
            }
        }
        shared
    }

    /// Returns the size of all shared attributes in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Encodes all shared attributes.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        for xattr in &self.stored {
            encode_entry(xattr, bytes);
        }
    }

    /// Returns the size in bytes of the attributes that follow an inode.
    pub(super) fn body_size(&self, inode: &Inode) -> Result<u64, InodeProblem> {
        let xattrs = &inode.meta.xattrs;
        if xattrs.is_empty() {
            return Ok(0);
        }
        xattr::check_set(xattrs.iter())?;
        let (shared, own) = self.split(xattrs);
        let own: usize = own.iter().map(|xattr| xattr.stored_size()).sum();
        let size = XATTR_HEADER_SIZE + 4 * shared.len() + own;
        Ok(size as u64)
    }

    /// Encodes the attributes that follow an inode. Adds `base` to the numbers of shared
    /// attributes.
    pub(super) fn encode_body(&self, inode: &Inode, base: u32, bytes: &mut Vec<u8>) {
        let xattrs = &inode.meta.xattrs;
        if xattrs.is_empty() {
            return;
        }
        let (shared, own) = self.split(xattrs);
        bytes.extend_from_slice(&format::encode_xattr_header(saturate8(shared.len())));
        for position in shared {
            bytes.extend_from_slice(&(position + base).to_le_bytes());
        }
        for xattr in own {
            encode_entry(xattr, bytes);
        }
    }

    /// Splits attributes into the positions of the shared ones, and the others; both in order of
    /// name.
    fn split<'a>(&self, xattrs: &'a [Xattr]) -> (Vec<u32>, Vec<&'a Xattr>) {
        let mut sorted: Vec<&Xattr> = xattrs.iter().collect();
        sorted.sort_unstable();
        let mut shared = Vec::new();
        let mut own = Vec::new();
        for xattr in sorted {
            match self.positions.get(xattr) {
                Some(&position) if shared.len() < SHARED_MAX => shared.push(position),
                _ => own.push(xattr),
            }
        }
        (shared, own)
    }
}

/// Returns the namespace number and the stored part of a name that has been checked.
fn stored_name(xattr: &Xattr) -> (u8, &[u8]) {
    xattr::split_name(&xattr.name).unwrap_or((0, &xattr.name))
}

fn encode_entry(xattr: &Xattr, bytes: &mut Vec<u8>) {
    let (namespace, name) = stored_name(xattr);
    let head = format::encode_xattr_entry(
        saturate8(name.len()),
        namespace,
        saturate16(xattr.value.len()),
    );
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(&xattr.value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}
