//! Looks up paths in a layer, through its symbolic links.

use std::io::{Seek, Write};

use micabox_erofs::{InodeId, Kind, overlay};
use micabox_tar::printable;

use super::{LayerTree, Problem, SYMLINKS_MAX};

/// Result of a path's lookup.
pub(super) enum Found {
    Inode(InodeId),
    /// Not in this layer; the absolute path at which a lower layer would have it.
    Missing(Box<[u8]>),
}

/// State of a walk.
struct Walk {
    directory: InodeId,
    /// The names from the root to `directory`.
    names: Vec<Box<[u8]>>,
    /// The rest of the path, the next name last.
    ahead: Vec<Box<[u8]>>,
}

impl<W: Write + Seek> LayerTree<W> {
    /// Returns the directory with this path; missing directories are implied.
    pub(super) fn directory(&mut self, path: &[&[u8]]) -> Result<InodeId, Problem> {
        if let Some((recent, inode)) = &self.recent
            && recent.iter().map(Vec::as_slice).eq(path.iter().copied())
        {
            return Ok(*inode);
        }
        let walk = self.walk(path, |tree, directory, name| {
            tree.count_one(name.len())?;
            let inode = tree
                .writer
                .tree()
                .add(overlay::implied_directory(), Kind::directory());
            tree.link(directory, name, inode)?;
            Ok(Some(inode))
        })?;
        let inode = walk.directory;
        self.recent = Some((path.iter().map(|name| name.to_vec()).collect(), inode));
        Ok(inode)
    }

    /// Looks up `path`, without following its last component.
    pub(super) fn find(&mut self, path: &[&[u8]]) -> Result<Found, Problem> {
        let Some((&name, parents)) = path.split_last() else {
            return Ok(Found::Inode(self.writer.tree().root()));
        };
        let mut walk = self.walk(parents, |_, _, _| Ok(None))?;
        if walk.ahead.is_empty()
            && let Some(inode) = self.writer.tree().lookup(walk.directory, name)
        {
            return Ok(Found::Inode(inode));
        }
        // The rest can't go through this layer's links, so it is only text.
        walk.ahead.insert(0, name.into());
        for name in walk.ahead.into_iter().rev() {
            match &*name {
                b"" | b"." => {}
                b".." => drop(walk.names.pop()),
                _ => walk.names.push(name),
            }
        }
        let names = walk.names.iter().flat_map(|name| [b"/", &**name]);
        Ok(Found::Missing(names.collect::<Vec<_>>().concat().into()))
    }

    /// Follows `path` from the root, through symbolic links, without leaving the layer: `..` in a
    /// link's target stops at the root, and an absolute target starts there. `missing` may make a
    /// missing directory; if it doesn't, the walk ends.
    fn walk(
        &mut self,
        path: &[&[u8]],
        missing: impl Fn(&mut Self, InodeId, &[u8]) -> Result<Option<InodeId>, Problem>,
    ) -> Result<Walk, Problem> {
        let root = self.writer.tree().root();
        let mut links = 0;
        let mut walk = Walk {
            directory: root,
            names: Vec::new(),
            ahead: path.iter().rev().map(|&name| name.into()).collect(),
        };
        while let Some(name) = walk.ahead.pop() {
            match &*name {
                b"" | b"." => continue,
                b".." => {
                    walk.directory = self.writer.tree().parent(walk.directory).unwrap_or(root);
                    walk.names.pop();
                    continue;
                }
                _ => {}
            }
            let inode = match self.writer.tree().lookup(walk.directory, &name) {
                Some(inode) => Some(inode),
                None => missing(self, walk.directory, &name)?,
            };
            let Some(inode) = inode else {
                walk.ahead.push(name);
                break;
            };
            match &self.writer.tree().inode(inode).kind {
                Kind::Directory(_) => {
                    walk.directory = inode;
                    walk.names.push(name);
                }
                Kind::Symlink(target) => {
                    links += 1;
                    if links > SYMLINKS_MAX {
                        return Err(Problem::SymlinkLoop);
                    }
                    walk.ahead
                        .extend(target.split(|&byte| byte == b'/').rev().map(Box::from));
                    if target.starts_with(b"/") {
                        walk.directory = root;
                        walk.names.clear();
                    }
                }
                _ => return Err(Problem::NotADirectory(printable(&name))),
            }
        }
        Ok(walk)
    }
}
