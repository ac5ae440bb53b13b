//! Applies one layer to the merge of the layers below, as overlayfs would.

use std::collections::HashSet;

use super::links::Links;
use super::load::Loaded;
use crate::Result;
use crate::overlay;
use crate::tree::{Inode, InodeId, Kind, Metadata, Tree};

/// The merge of the layers so far.
pub(super) struct Merged {
    pub tree: Tree,
    /// Link counts to write, by inode; unused for directories. A name that a higher layer hides
    /// does not lower them: overlayfs shows the count of the layer's inode.
    nlinks: Vec<u32>,
    /// Inodes that a plain stack of the layers would show differently: files, and directories
    /// because of their attributes.
    pub corrected: HashSet<InodeId>,
    /// Index of the lowest visible layer.
    pub first_layer: usize,
}

/// The effect of a layer's inode on what lies below.
enum Role {
    /// Hides it.
    Whiteout,
    /// Joins what lies below if that is a directory, too.
    Directory { opaque: bool, implied: bool },
    /// Replaces what lies below with another name of a file of a lower layer.
    LinkToLower,
    /// Replaces what lies below.
    Other,
}

fn role(inode: &Inode) -> Role {
    let has = |name: &[u8]| inode.meta.xattrs.iter().any(|x| &*x.name == name);
    match inode.kind {
        Kind::CharDevice(0) => Role::Whiteout,
        Kind::File { size: 0, .. } if has(overlay::XWHITEOUT) => Role::Whiteout,
        Kind::File { .. } if has(overlay::METACOPY) => Role::LinkToLower,
        Kind::Directory(_) => Role::Directory {
            opaque: inode
                .meta
                .xattrs
                .iter()
                .any(|x| &*x.name == overlay::OPAQUE && &*x.value == b"y"),
            implied: has(overlay::IMPLIED),
        },
        _ => Role::Other,
    }
}

/// Removes the markers.
fn strip(meta: &mut Metadata) {
    meta.xattrs.retain(|x| !overlay::is_marker(&x.name));
}

impl Merged {
    /// Starts with the merge of no layers: an empty directory.
    pub(super) fn new() -> Self {
        let mut root = overlay::implied_directory();
        strip(&mut root);
        Self {
            tree: Tree::new(root),
            nlinks: vec![0],
            corrected: HashSet::new(),
            first_layer: 0,
        }
    }

    /// Applies the layer with this index on top.
    pub(super) fn apply(&mut self, index: usize, mut layer: Loaded) -> Result<()> {
        // The layers below determine the targets of links, so resolve links before the merge
        // changes.
        let mut links = Links::resolve(&self.tree, &layer.tree);
        // Merged inodes by the layer's inode.
        let mut merged: Vec<Option<InodeId>> = vec![None; layer.tree.len()];

        let (layer_root, root) = (layer.tree.root(), self.tree.root());
        if let Role::Directory { opaque, .. } = role(layer.tree.inode(layer_root)) {
            if opaque {
                self.first_layer = index;
            }
            self.join(&mut layer.tree, layer_root, root);
        }
        let mut pending = vec![(layer_root, root)];
        while let Some((from, to)) = pending.pop() {
            for (name, id) in layer.tree.take_entries(from) {
                match role(layer.tree.inode(id)) {
                    Role::Whiteout => {
                        self.tree.unlink(to, &name);
                    }
                    Role::LinkToLower => {
                        // Hide the name now, so that it is not taken for another link's unchanged
                        // target.
                        self.tree.unlink(to, &name);
                        links.add_name(id, to, name);
                    }
                    Role::Directory { .. } => {
                        let below = self.tree.lookup(to, &name);
                        let directory = match below {
                            Some(below) if self.tree.inode(below).is_directory() => {
                                self.join(&mut layer.tree, id, below);
                                below
                            }
                            _ => {
                                let meta = layer.tree.take_metadata(id);
                                let new = self.add(meta, Kind::directory(), 0);
                                self.tree.link(to, &name, new)?;
                                new
                            }
                        };
                        pending.push((id, directory));
                    }
                    Role::Other => {
                        let known = merged.get(id.index()).copied().flatten();
                        let new = match known {
                            Some(new) => new,
                            None => {
                                let nlink = layer.nlinks.get(id.index()).copied().unwrap_or(1);
                                let (meta, kind) = layer.tree.take(id);
                                let new = self.add(meta, kind, nlink);
                                if let Some(slot) = merged.get_mut(id.index()) {
                                    *slot = Some(new);
                                }
                                new
                            }
                        };
                        self.tree.link(to, &name, new)?;
                    }
                }
            }
        }
        self.link_to_lower(&mut layer.tree, links)
    }

    /// Replaces the link counts, which changed with every name, with those to be written.
    pub(super) fn settle_links(&mut self) {
        self.tree.set_link_counts(&self.nlinks);
    }

    /// Merges a directory with a lower one: keeps the upper one's attributes, unless it is implied,
    /// and the entries of both, unless the upper one is opaque.
    fn join(&mut self, layer: &mut Tree, upper: InodeId, lower: InodeId) {
        let Role::Directory { opaque, implied } = role(layer.inode(upper)) else {
            return;
        };
        if opaque {
            self.tree.clear(lower);
        }
        let mut meta = layer.take_metadata(upper);
        strip(&mut meta);
        if !implied {
            self.tree.inode_mut(lower).meta = meta;
            self.corrected.remove(&lower);
        } else if self.tree.inode(lower).meta == meta {
            self.corrected.remove(&lower);
        } else {
            // A stack would show the attributes of the implied directory.
            self.corrected.insert(lower);
        }
    }

    fn add(&mut self, mut meta: Metadata, kind: Kind, nlink: u32) -> InodeId {
        strip(&mut meta);
        self.nlinks.push(nlink.max(1));
        self.tree.add(meta, kind)
    }

    /// Creates the links that were put aside. As with a copy-up on a writable overlay, the link and
    /// its target become one new inode; other names of the target keep the old one.
    fn link_to_lower(&mut self, layer: &mut Tree, links: Links) -> Result<()> {
        if links.is_empty() {
            return Ok(());
        }
        let reachable = self.tree.reachable_directories();
        for group in links.into_groups(&self.tree)? {
            let mut meta = layer.take_metadata(group.marker);
            strip(&mut meta);
            let target = self.tree.inode(group.target);
            for xattr in &target.meta.xattrs {
                if meta.xattrs.iter().all(|x| x.name != xattr.name) {
                    meta.xattrs.push(xattr.clone());
                }
            }
            let kind = target.kind.clone();
            if matches!(kind, Kind::Symlink(_)) {
                // Linux knows no other mode of a symbolic link, whatever the link's entry has.
                meta.mode = 0o777;
            }
            let mut names = group.names;
            let (directory, name) = &group.location;
            let untouched = self.tree.lookup(*directory, name) == Some(group.target)
                && reachable.get(directory.index()) == Some(&true);
            if untouched {
                names.push(group.location);
            }
            let nlink = u32::try_from(names.len()).unwrap_or(u32::MAX);
            let new = self.add(meta, kind, nlink);
            self.corrected.insert(new);
            for (directory, name) in names {
                self.tree.link(directory, &name, new)?;
            }
        }
        Ok(())
    }
}
