//! A filesystem as it is. Numbers are its own.

use std::fmt;
use std::sync::Arc;

use micabox_file::{FileKind, Segment};
use micabox_memfs::{Errno, Lower, Stat};
use micabox_overlay::lower::{self, Node};

use super::{Shown, io, without_marks};

/// A tree of an EROFS or ext4 filesystem.
pub(super) struct Alone {
    tree: Arc<lower::Lower>,
    shown: Shown,
}

impl Alone {
    pub(super) fn new(tree: Arc<lower::Lower>, shown: Shown) -> Self {
        Self { tree, shown }
    }

    fn node(&self, number: u64) -> Result<Node, Errno> {
        self.tree.node(number).map_err(io)
    }
}

impl Lower for Alone {
    fn root(&self) -> u64 {
        // Without a root, nothing has this number either, and each request fails.
        self.tree.root().map_or(0, |node| node.number())
    }

    fn stat(&self, number: u64) -> Result<Stat, Errno> {
        let stat = self.node(number)?.stat;
        Ok(match self.shown {
            Shown::BelowContainers {
                has_one_owner: true,
            } => Stat {
                uid: 0,
                gid: 0,
                ..stat
            },
            _ => stat,
        })
    }

    fn list(&self, directory: u64) -> Result<Vec<(Box<[u8]>, u64, FileKind)>, Errno> {
        let entries = self.tree.entries(&self.node(directory)?).map_err(io)?;
        let entry = entries.into_iter().map(|entry| {
            let kind = match entry.kind {
                Some(kind) => kind,
                None => self.node(entry.number)?.stat.kind,
            };
            Ok((entry.name, entry.number, kind))
        });
        entry.collect()
    }

    fn read(&self, file: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        read(&self.tree, &self.node(file)?, offset, buffer)
    }

    fn segments(&self, file: u64) -> Result<Vec<Segment>, Errno> {
        self.tree.segments(&self.node(file)?).map_err(io)
    }

    fn target(&self, link: u64) -> Result<Vec<u8>, Errno> {
        self.tree.read_link(&self.node(link)?).map_err(io)
    }

    fn xattrs(&self, number: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Errno> {
        let mut xattrs = self.tree.xattrs(&self.node(number)?).map_err(io)?;
        if let Shown::BelowContainers { has_one_owner } = self.shown {
            // Access control lists name owners that there are not.
            let hidden = |name: &[u8]| {
                name.starts_with(b"trusted.")
                    || has_one_owner && name.starts_with(b"system.posix_acl_")
            };
            xattrs.retain(|(name, _)| !hidden(name));
        }
        Ok(match self.shown {
            Shown::Overlaid => without_marks(xattrs),
            _ => xattrs,
        })
    }
}

/// Reads as many bytes as there are.
pub(super) fn read(
    tree: &lower::Lower,
    file: &Node,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize, Errno> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match tree.read(file, offset + done as u64, rest).map_err(io)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

impl fmt::Debug for Alone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alone").finish_non_exhaustive()
    }
}
