//! Hard links of a layer to files of the layers below.

use std::collections::{BTreeMap, HashMap};

use crate::tree::{InodeId, Kind, Tree};
use crate::{Error, Result, overlay};

/// Maximum number of symbolic links followed on the way to one target, as in Linux.
const SYMLINKS_MAX: usize = 40;

/// A name: the directory, and the name in it.
pub(super) type Location = (InodeId, Box<[u8]>);

/// The links of one layer: inodes with the marker that gives the path of the file.
pub(super) struct Links {
    links: BTreeMap<InodeId, Link>,
}

struct Link {
    /// Position of the link's last name in a walk through the layer in order of names.
    rank: usize,
    target_path: Box<[u8]>,
    /// The target below this layer: location and inode.
    target: Option<(Location, InodeId)>,
    /// The names of the link in the merged tree.
    names: Vec<Location>,
}

/// The links to one name of a lower layer; they become one inode.
pub(super) struct Group {
    /// The layer's inode that provides the attributes: the last of the links in a walk in order of
    /// names. In an archive, all links to one file have the same attributes.
    pub marker: InodeId,
    /// Its rank.
    rank: usize,
    /// Inode of the target before this layer is applied.
    pub target: InodeId,
    /// The target's name.
    pub location: Location,
    /// The links' names.
    pub names: Vec<Location>,
}

impl Links {
    /// Finds a layer's links and looks up their targets in the layers below.
    pub(super) fn resolve(below: &Tree, layer: &Tree) -> Self {
        let mut links = BTreeMap::new();
        for id in layer.ids() {
            let inode = layer.inode(id);
            let xattr = |name: &[u8]| inode.meta.xattrs.iter().find(|x| &*x.name == name);
            if !matches!(inode.kind, Kind::File { .. }) || xattr(overlay::METACOPY).is_none() {
                continue;
            }
            let target_path: Box<[u8]> = xattr(overlay::REDIRECT)
                .map(|x| (*x.value).into())
                .unwrap_or_default();
            let target = find(below, &target_path);
            links.insert(
                id,
                Link {
                    rank: 0,
                    target_path,
                    target,
                    names: Vec::new(),
                },
            );
        }
        if !links.is_empty() {
            let mut pending = vec![layer.root()];
            for rank in 0.. {
                let Some(id) = pending.pop() else { break };
                if let Some(link) = links.get_mut(&id) {
                    link.rank = rank;
                }
                let first = pending.len();
                pending.extend(layer.entries(id).map(|(_, id)| id));
                pending[first..].reverse();
            }
        }
        Self { links }
    }

    /// Whether the layer has no links to lower layers.
    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Records a name of a link.
    pub(super) fn add_name(&mut self, link: InodeId, directory: InodeId, name: Box<[u8]>) {
        if let Some(link) = self.links.get_mut(&link) {
            link.names.push((directory, name));
        }
    }

    /// Groups the links by target. `merged` is the tree with the layer, but without its links: a
    /// target that was not found below may be there, behind a symbolic link of the layer.
    ///
    /// # Errors
    ///
    /// [`Error::LinkTarget`] for a target that does not exist or can't be linked to.
    pub(super) fn into_groups(self, merged: &Tree) -> Result<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        let mut by_location: HashMap<Location, usize> = HashMap::new();
        for (marker, link) in self.links {
            if link.names.is_empty() {
                continue;
            }
            let target = link.target.or_else(|| find(merged, &link.target_path));
            let (location, target) = match target {
                Some((location, target)) if !merged.inode(target).is_directory() => {
                    (location, target)
                }
                _ => {
                    return Err(Error::LinkTarget {
                        path: first_path(merged, &link.names),
                        target: link.target_path,
                        problem: match target {
                            Some(_) => "is a directory",
                            None => "does not exist",
                        },
                    });
                }
            };
            match by_location.get(&location) {
                Some(&index) => {
                    if let Some(group) = groups.get_mut(index) {
                        group.names.extend(link.names);
                        if group.rank < link.rank {
                            (group.rank, group.marker) = (link.rank, marker);
                        }
                    }
                }
                None => {
                    by_location.insert(location.clone(), groups.len());
                    groups.push(Group {
                        marker,
                        rank: link.rank,
                        target,
                        location,
                        names: link.names,
                    });
                }
            }
        }
        Ok(groups)
    }
}

/// Returns the path of a link's first name.
fn first_path(merged: &Tree, names: &[Location]) -> Box<[u8]> {
    let Some((directory, name)) = names.first() else {
        return Box::default();
    };
    let mut path = merged.path_of(*directory);
    if path != b"/" {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path.into()
}

/// Finds an absolute path. Follows symbolic links within the tree, except in the last component.
fn find(tree: &Tree, path: &[u8]) -> Option<(Location, InodeId)> {
    let mut directory = tree.root();
    let mut followed = 0;
    // Remaining components, the next one last.
    let mut rest: Vec<&[u8]> = components(path).rev().collect();
    while let Some(name) = rest.pop() {
        if name == b".." {
            directory = tree.parent(directory).unwrap_or(tree.root());
            continue;
        }
        let id = tree.lookup(directory, name)?;
        if rest.is_empty() {
            return Some(((directory, name.into()), id));
        }
        match &tree.inode(id).kind {
            Kind::Directory(_) => directory = id,
            Kind::Symlink(target) => {
                followed += 1;
                if followed > SYMLINKS_MAX {
                    return None;
                }
                if target.first() == Some(&b'/') {
                    directory = tree.root();
                }
                rest.extend(components(target).rev());
            }
            _ => return None,
        }
    }
    None
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
}
